"""What one rank has otherwise than rank 0 is found, and put together again."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from parsing import parse

from resume_core.image import (
    Arena,
    FileSpec,
    OwnPart,
    Stager,
    fingerprint,
    flatten,
    own_part,
    unflatten,
    with_own_part,
)
from tests.image import strategies
from tests.image.helpers import assert_same


def stored(tensors):
    """Tensors as a file gives them back."""
    (image,) = Stager(Arena()).stage([FileSpec("file", tensors)])
    image.wait()
    return {name: tensor.clone() for name, tensor in parse(image.buffer).items()}


def restored(first, mine):
    """``mine``, from what rank 0 has written and what is kept of its own."""
    flat_first, flat_mine = flatten(first), flatten(mine)
    own = own_part(flat_mine, fingerprint(flat_first))
    kept = OwnPart(own.structure, own.shared, stored(own.tensors))
    structure, tensors = with_own_part(flat_first.structure, stored(flat_first.tensors), kept)
    return own, unflatten(structure, tensors)


def test_the_same_tree_keeps_nothing_of_its_own():
    tree = {"lr": 0.1, "best": torch.tensor(3.0), "large": torch.zeros(100_000)}
    own, _ = restored(tree, {**tree, "best": torch.tensor(3.0)})
    assert own.structure is None
    assert own.tensors == {}


def test_a_number_that_differs_is_kept():
    own, found = restored({"lr": 0.1, "best": torch.tensor(3.0)}, {"lr": 0.2, "best": torch.tensor(3.0)})
    assert found == {"lr": 0.2, "best": torch.tensor(3.0)}
    assert own.tensors == {}


def test_a_small_tensor_that_differs_is_kept_and_the_others_are_shared():
    first = {"best": torch.tensor(3.0), "mean": torch.ones(4), "large": torch.ones(100_000)}
    own, found = restored(first, {**first, "best": torch.tensor(4.0)})
    assert list(own.tensors) == ["best"]
    assert found["best"] == 4
    assert torch.equal(found["large"], first["large"])


def test_tensors_that_only_one_of_them_has():
    own, found = restored({"a": torch.ones(2), "gone": torch.ones(3)}, {"a": torch.ones(2), "new": torch.ones(1)})
    assert set(own.tensors) == {"new"}
    assert found.keys() == {"a", "new"}


def test_another_type_or_shape_with_the_same_bytes_is_a_difference():
    first = {"a": torch.zeros(4, dtype=torch.int32)}
    for other in (torch.zeros(4), torch.zeros(2, 2, dtype=torch.int32)):
        _, found = restored(first, {"a": other})
        assert (found["a"].dtype, found["a"].shape) == (other.dtype, other.shape)


def test_what_is_shared_and_missing_is_noticed():
    with pytest.raises(KeyError, match="a"):
        with_own_part({}, {}, OwnPart(shared=("a",)))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(strategies.states, strategies.states)
def test_any_state_comes_back_whatever_rank_0_has(first, mine):
    _, found = restored({"state": first}, {"state": mine})
    assert_same(mine, found["state"])
