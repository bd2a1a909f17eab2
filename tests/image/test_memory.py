"""A walk that remembers the one before finds exactly what a first walk would find."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from parsing import parse

from resume_core.errors import UnsupportedStateError
from resume_core.image import Arena, FileSpec, Memory, Stager, flatten, unflatten
from tests.image.helpers import assert_same

POOL = [torch.arange(12.0).reshape(3, 4) + i for i in range(3)]
POOL += [POOL[0].t(), POOL[0][0], POOL[0].view(4, 3), torch.zeros(0), torch.nn.Parameter(torch.ones(2))]
POOL += [torch.ones(3, dtype=torch.complex64)]
POOL += [POOL[-1].conj(), POOL[1].double(), POOL[2].clone()]
values = st.sampled_from(range(len(POOL))) | st.just(None)
trees = st.dictionaries(
    st.sampled_from("abcd"),
    values | st.dictionaries(st.sampled_from(["x", "y", "b.x", 1]), values, max_size=3),
    max_size=4,
)


def real(tree):
    if isinstance(tree, dict):
        return {key: real(child) for key, child in tree.items()}
    return None if tree is None else POOL[tree]


def flat_parts(flat):
    return flat.structure, {name: t.data_ptr() for name, t in flat.tensors.items()}, flat.aliases


@given(st.lists(trees, min_size=2, max_size=6))
@settings(max_examples=400, deadline=None)
def test_any_sequence_of_trees_restores_as_it_was(sequence):
    memory, stager = Memory(), Stager(Arena())
    for tree in map(real, sequence):
        flat = flatten(tree, memory=memory)
        (image,) = stager.stage([FileSpec("a.safetensors", flat.tensors, plan=flat.plan)])
        assert_same(tree, unflatten(flat.structure, parse(bytes(image.buffer))))
        assert set(flat.aliases.values()) <= flat.tensors.keys()


@given(trees)
@settings(max_examples=200, deadline=None)
def test_the_same_tree_again_is_found_as_it_was_found_first(tree):
    memory = Memory()
    first, again = (flatten(real(tree), memory=memory) for _ in range(2))
    assert flat_parts(first) == flat_parts(again)


def test_nothing_new_keeps_the_plan_and_anything_new_changes_it():
    memory = Memory()
    plans = [
        flatten(tree, memory=memory).plan
        for tree in (
            {"a": torch.zeros(3), "b": 1},
            {"a": torch.ones(3), "b": 2},  # other memory, other values
            {"a": torch.ones(4), "b": 2},
            {"a": torch.ones(4).double(), "b": 2},
            {"a": torch.ones(4, 1).double(), "b": 2},
            {"a": torch.ones(1, 4).double().t(), "c": torch.ones(1)},
            {"c": torch.ones(1)},
        )
    ]
    assert plans[0] is plans[1]
    assert len({id(plan) for plan in plans}) == len(plans) - 1


def test_tensors_that_are_tied_from_now_on_are_one_entry_and_apart_again_two():
    memory = Memory()
    one, other = torch.ones(3), torch.zeros(3)
    for tree, num in (
        ({"a": one, "b": other}, 2),
        ({"a": one, "b": one}, 1),
        ({"a": one, "b": one}, 1),
        ({"a": one.clone(), "b": other}, 2),
        ({"a": other, "b": other, "c": one}, 2),
    ):
        flat = flatten(tree, memory=memory)
        assert len(flat.tensors) == num
        assert_same(tree, unflatten(flat.structure, dict(flat.tensors)))


def test_a_view_that_only_says_conjugate_is_no_alias_of_the_tensor_it_was_tied_to():
    memory, tensor = Memory(), torch.tensor([1 + 2j])
    assert flatten({"a": tensor, "b": tensor}, memory=memory).aliases == {"b": "a"}
    assert flatten({"a": tensor, "b": tensor.conj()}, memory=memory).aliases == {}


def test_a_tensor_that_cannot_be_stored_any_more_is_refused_at_its_place():
    memory = Memory()
    flatten({"a": torch.eye(2)}, memory=memory)
    with pytest.raises(UnsupportedStateError, match="'a'"):
        flatten({"a": torch.eye(2).to_sparse()}, memory=memory)
    assert flatten({"a": torch.eye(2)}, memory=memory).tensors.keys() == {"a"}


def test_what_was_found_before_is_not_walked_anew(monkeypatch):
    memory, tree = Memory(), {"a": torch.zeros(2), "b": {"c": torch.ones(1)}}
    flatten(tree, memory=memory)
    monkeypatch.setattr("resume_core.image.encode._node", None)
    flatten(tree, memory=memory)


def test_a_layout_is_used_again_without_looking_at_the_tensors(monkeypatch):
    memory, stager = Memory(), Stager(Arena())

    def save(value):
        flat = flatten({"a": torch.full((5,), value)}, memory=memory)
        (image,) = stager.stage([FileSpec("f", flat.tensors, plan=flat.plan)])
        return parse(bytes(image.buffer))["a"].tolist()

    assert save(1.0) == [1.0] * 5
    monkeypatch.setattr("resume_core.image.layout.Layout.matches", None)
    assert save(2.0) == [2.0] * 5
