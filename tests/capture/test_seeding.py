import copy
import pickle
import random
import warnings

import numpy as np
import pytest
import torch
from loader_kinds import hugging_face
from loader_parts import Own, Samples, global_draws
from torch.utils.data import Subset

from resume_core.capture.rng import preserved_rng
from resume_core.capture.seeding import DataGenerators, SeededBatch, SeededCollate, Sent, deliver, seeded


@pytest.fixture(autouse=True)
def generators_put_back():
    with preserved_rng():
        yield


class Owner:
    def __init__(self):
        self.own = Own()

    def draws(self):
        return [*global_draws(), *self.own()]


class BatchOwner(Owner):
    def __getitems__(self, indices):
        return indices


def draws_of(batch, owner):
    return [(index, owner.draws()) for index in batch]


def test_each_index_is_yielded_with_every_generator_seeded():
    owner = Owner()
    first = draws_of(SeededBatch([7, 3, 5], 11, 20, DataGenerators(owner)), owner)
    owner.draws()
    other = Owner()
    assert draws_of(SeededBatch([7, 3, 5], 11, 20, DataGenerators(other)), other) == first
    assert [index for index, _ in first] == [7, 3, 5]
    assert len({tuple(draws) for _, draws in first}) == 3


def test_what_one_sample_draws_does_not_move_the_next():
    owner = Owner()
    expected = draws_of(SeededBatch([1, 2, 3], 11, 0, DataGenerators(owner)), owner)
    greedy = []
    for index in SeededBatch([1, 2, 3], 11, 0, DataGenerators(owner)):
        greedy.append((index, owner.draws()))
        for _ in range(index):
            owner.draws()
    assert greedy == expected


def test_a_sample_draws_the_same_at_its_position_in_whatever_batch():
    owner = Owner()
    data = DataGenerators(owner)
    whole = draws_of(SeededBatch(range(6), 11, 40, data), owner)
    parts = [
        *draws_of(SeededBatch([0], 11, 40, data), owner),
        *draws_of(SeededBatch([1, 2, 3], 11, 41, data), owner),
        *draws_of(SeededBatch([4, 5], 11, 44, data), owner),
    ]
    assert parts == whole


@pytest.mark.parametrize(("seed", "position"), [(12, 20), (11, 21), (11 ^ (1 << 63), 20)])
def test_another_seed_or_position_draws_something_else(seed, position):
    owner = Owner()
    data = DataGenerators(owner)
    first = draws_of(SeededBatch([7], 11, 20, data), owner)[0][1]
    other = draws_of(SeededBatch([7], seed, position, data), owner)[0][1]
    assert all(one != two for one, two in zip(first, other, strict=True))


def test_behind_the_last_index_the_draws_of_the_last_sample_go_on():
    owner = Owner()
    data = DataGenerators(owner)
    drawn = []
    for outside in (1, 2):  # whatever was drawn before the batch
        owner.draws()
        random.seed(outside)
        for _ in SeededBatch([1, 2], 11, 20, data):
            last = owner.draws()
        drawn.append(owner.draws())
    assert drawn[0] == drawn[1]
    assert all(one != two for one, two in zip(drawn[0], last, strict=True))


def test_a_second_pass_draws_something_else_and_is_repeatable_too():
    owner = Owner()
    data = DataGenerators(owner)
    one, other = SeededBatch([1, 2], 11, 20, data), SeededBatch([1, 2], 11, 20, data)
    first = [draws_of(one, owner) for _ in range(3)]
    assert first == [draws_of(other, owner) for _ in range(3)]
    assert len({tuple(draws) for batch in first for _, draws in batch}) == 6


def test_a_batch_is_a_list_of_its_indices():
    batch = SeededBatch(torch.tensor([4, 2]), 11, 20, DataGenerators(Owner()))
    assert isinstance(batch, list)
    assert len(batch) == 2
    assert batch[1] == 2
    assert [int(index) for index in batch[:]] == [4, 2]


@pytest.mark.parametrize(
    "copying", [copy.copy, copy.deepcopy, lambda batch: pickle.loads(pickle.dumps(batch)), list.copy]
)
def test_a_copy_is_a_plain_list_and_seeds_nothing(copying):
    owner = Owner()
    batch = SeededBatch([1, 2], 11, 20, DataGenerators(owner))
    expected = draws_of(batch, owner)
    batch.num_passes = 0
    state = random.getstate()
    copied = copying(batch)
    assert type(copied) is list
    assert list(copied) == [1, 2]
    assert random.getstate() == state
    assert draws_of(batch, owner) == expected


# ---- handing over


def test_a_delivery_is_seeded_apart_from_samples_and_batches():
    owner = Owner()
    data = DataGenerators(owner)
    drawn = []
    for position in (20, 21):
        deliver(11, position, data)
        drawn.append(tuple(owner.draws()))
        drawn += [tuple(draws) for _, draws in draws_of(SeededBatch([1], 11, position, data), owner)]
        drawn.append(tuple(owner.draws()))
    assert len(set(drawn)) == 6


def test_a_single_index_stays_as_it_is():
    owner = Owner()
    key = ("a", 1)
    assert seeded(key, 11, 20, DataGenerators(owner), single=True) is key
    drawn = owner.draws()
    seeded(key, 11, 20, DataGenerators(owner), single=True)
    assert owner.draws() == drawn


def test_a_batch_that_is_no_list_stays_as_it_is_for_getitems_alone():
    indices = (1, 2)
    assert seeded(indices, 11, 20, DataGenerators(BatchOwner()), single=False) is indices
    assert type(seeded(indices, 11, 20, DataGenerators(Owner()), single=False)) is SeededBatch
    assert type(seeded([1, 2], 11, 20, DataGenerators(BatchOwner()), single=False)) is SeededBatch


def test_getitems_may_draw_before_it_looks_at_the_batch():
    owner = BatchOwner()
    drawn = []
    for _ in range(2):
        owner.draws()
        seeded([1, 2], 11, 20, DataGenerators(owner), single=False)
        drawn.append(owner.draws())
    assert drawn[0] == drawn[1]


def test_a_hugging_face_dataset_is_given_the_plain_list():
    indices = [1, 2]
    assert seeded(indices, 11, 20, DataGenerators(hugging_face()), single=False) is indices
    assert type(seeded(indices, 11, 20, DataGenerators(Subset(hugging_face(), [1, 2])), single=False)) is SeededBatch


@pytest.mark.parametrize("unit", [3, "name", [1, 2], (1, 2)])
def test_what_is_sent_to_a_worker_seeds_nothing_elsewhere(unit):
    state = random.getstate(), torch.get_rng_state()
    assert pickle.loads(pickle.dumps(Sent(unit, 11, 20, single=True))) == unit
    assert copy.copy(Sent(unit, 11, 20, single=True)) == unit
    assert random.getstate() == state[0]
    assert torch.equal(torch.get_rng_state(), state[1])


def test_a_collate_function_is_called_with_its_generators_seeded():
    rng = np.random.default_rng()

    def collate(samples):
        return samples, rng.random()

    seeded_collate = SeededCollate(collate, (rng,))
    drawn = []
    for position in (20, 21, 20):
        list(SeededBatch([1], 11, position, DataGenerators(Owner())))
        rng.random()
        drawn.append(seeded_collate([1]))
    assert drawn[0] == drawn[2] != drawn[1]
    assert drawn[0][0] == [1]


# ---- searching


class Late:
    """Makes its generator when it is first read."""

    rng = None

    def read(self):
        self.rng = self.rng or random.Random(5)
        return self.rng.random()


def test_generators_made_while_the_data_is_read_are_found_for_the_second_fetch_and_warned_of():
    owner = Late()
    data = DataGenerators(owner)
    list(seeded([1], 11, 0, data, single=False))
    owner.read()
    with pytest.warns(UserWarning, match=r"Late makes random generators while it is read.*in its __init__"):
        batch = seeded([2], 11, 1, data, single=False)
    drawn = [owner.read() for _ in batch]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [owner.read() for _ in seeded([2], 11, 1, data, single=False)] == drawn


def test_no_warning_where_the_generators_were_there():
    data = DataGenerators(Samples())
    for position in range(3):
        list(seeded([1], 11, position, data, single=False))
