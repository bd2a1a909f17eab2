import itertools
import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from loader_parts import CountingSampler, GlobalSampler, OwnSampler, VaryingBatches, rng_fingerprint, scramble
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from resume_core.capture.order import is_plain_batching, order, sampler_chain, sampler_salt, sequence

SIZE = 70
SAMPLERS = {
    "random": lambda g: RandomSampler(range(SIZE), generator=g),
    "random, fewer": lambda g: RandomSampler(range(SIZE), num_samples=SIZE // 3, generator=g),
    "random, more": lambda g: RandomSampler(range(SIZE), num_samples=SIZE * 2 + 5, generator=g),
    "replacement": lambda g: RandomSampler(range(SIZE), replacement=True, generator=g),
    "replacement, more": lambda g: RandomSampler(range(SIZE), True, num_samples=SIZE * 3, generator=g),
    "weighted": lambda g: WeightedRandomSampler(torch.arange(1.0, SIZE), 50, generator=g),
    "weighted without replacement": lambda g: WeightedRandomSampler(torch.arange(1.0, SIZE), 50, False, generator=g),
    "subset": lambda g: SubsetRandomSampler(range(7, SIZE), generator=g),
    "names": lambda g: SubsetRandomSampler(["a", "b", "c", "d"], generator=g),
}


def native(name, seed):
    return list(SAMPLERS[name](torch.Generator().manual_seed(seed >> 1)))


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize("seed", [0, 5, 2**64 - 1])
def test_the_sequence_is_what_the_sampler_gives_with_an_equal_generator(name, seed):
    assert list(sequence(SAMPLERS[name](None), seed)) == native(name, seed)


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_generator_of_the_users_is_neither_used_nor_moved(name):
    generator = torch.Generator().manual_seed(3)
    state = generator.get_state()
    sampler = SAMPLERS[name](generator)
    assert list(sequence(sampler, 5)) == native(name, 5)
    assert torch.equal(generator.get_state(), state)
    assert sampler.generator is generator


@pytest.mark.parametrize("name", SAMPLERS)
def test_the_sequence_is_pure(name):
    sampler = SAMPLERS[name](None)
    first = list(sequence(sampler, 5))
    scramble(1)
    before = rng_fingerprint()
    assert list(sequence(sampler, 6)) != first
    assert list(sequence(sampler, 5)) == first
    assert rng_fingerprint() == before


def test_a_sequential_sampler_needs_no_seed():
    assert list(sequence(SequentialSampler(range(9)), 1)) == list(range(9))
    assert len(sequence(SequentialSampler(range(10**12)), 1)) == 10**12  # nothing is materialised


def test_a_distributed_sampler_goes_by_its_own_seed_and_epoch():
    sampler = DistributedSampler(range(SIZE), 3, 1, seed=4)
    sampler.set_epoch(6)
    scramble(1)
    before = rng_fingerprint()
    assert sequence(sampler, 1) == sequence(sampler, 2) == list(sampler)
    assert rng_fingerprint() == before


@pytest.mark.parametrize("kind", [RandomSampler, SequentialSampler, SubsetRandomSampler])
def test_a_subclass_is_left_to_itself(kind):
    class Own(kind):
        pass

    assert sequence(Own(range(9)), 1) is None


@pytest.mark.parametrize("sampler", [[3, 1, 2], GlobalSampler(), VaryingBatches(), range(4)])
def test_only_the_sampler_itself_can_tell_the_order_of(sampler):
    assert sequence(sampler, 1) is None


def test_plain_batching_is_that_of_the_class_of_torch_alone():
    class Own(BatchSampler):
        pass

    assert is_plain_batching(BatchSampler(range(9), 2, False))
    assert not is_plain_batching(Own(range(9), 2, False))
    assert not is_plain_batching([[1, 2]])


# ---- chains


class Wrapping:
    def __init__(self, **inner):
        self.__dict__.update(inner)

    def __iter__(self):
        return iter(())


def test_a_chain_goes_from_the_outermost_sampler_inwards():
    inner = RandomSampler(range(9))
    batches = BatchSampler(inner, 2, False)
    outer = Wrapping(batch_sampler=batches, sampler=None)
    assert sampler_chain(outer) == (outer, batches, inner)


def test_a_chain_ends_at_what_is_no_sampler_and_at_a_cycle():
    odd = Wrapping(sampler=3, batch_sampler=None)
    assert sampler_chain(odd) == (odd,)
    cycle = Wrapping()
    cycle.sampler = cycle
    assert sampler_chain(cycle) == (cycle,)
    assert sampler_chain([[1], [2]]) == ([[1], [2]],)
    assert sampler_chain(None) == ()


def test_a_chain_asks_no_sampler_how_long_it_is():
    class Endless(GlobalSampler):
        def __len__(self):
            raise TypeError("it never ends")

    inner = Endless()
    outer = Wrapping(sampler=inner)
    assert sampler_chain(outer) == (outer, inner)


def test_the_salt_is_the_initial_seed_of_a_generator_of_the_users():
    generator = torch.Generator().manual_seed(42)
    torch.rand(3, generator=generator)
    assert sampler_salt(RandomSampler(range(9), generator=generator)) == 42
    assert sampler_salt(RandomSampler(range(9))) == 0
    assert sampler_salt(OwnSampler(random.Random(1))) == 0


# ---- from a position on

ANY = {
    **{name: (lambda make=make: make(None)) for name, make in SAMPLERS.items()},
    "sequential": lambda: SequentialSampler(range(SIZE)),
    "global draws": lambda: GlobalSampler(SIZE),
    "own generator": lambda: OwnSampler(random.Random()),
    "counting": CountingSampler,
    "distributed": lambda: DistributedSampler(range(SIZE), 2, 0),
    "list": lambda: [5, 3, 8, 1],
}


@pytest.mark.parametrize("name", ANY)
def test_an_order_from_any_position_is_the_rest_of_the_whole(name):
    expected = list(order(ANY[name](), 5, 0, single=True))
    for start in {0, 1, len(expected) // 2, len(expected) - 1, len(expected), len(expected) + 3}:
        scramble(start)
        assert list(order(ANY[name](), 5, start, single=True)) == expected[start:]


@given(st.integers(1, 40), st.integers(1, 9), st.booleans(), st.integers(0, 41), st.sampled_from(sorted(ANY)))
@settings(max_examples=60, deadline=None)
def test_batches_are_those_of_torch_over_the_rest(size, batch_size, drop_last, start, name):
    rest = list(order(ANY[name](), 5, start, single=True))
    batches = order(BatchSampler(ANY[name](), batch_size, drop_last), 5, start, single=False)
    assert list(batches) == list(BatchSampler(rest, batch_size, drop_last))


def test_batches_of_a_batch_sampler_of_the_users_begin_at_a_position_between_two():
    expected = list(order(VaryingBatches(), 5, 0, single=False))
    starts = [0, *itertools.accumulate(map(len, expected))]
    for place, start in enumerate(starts):
        assert list(order(VaryingBatches(), 5, start, single=False)) == expected[place:]


@pytest.mark.parametrize("name", ANY)
def test_taking_an_order_leaves_every_generator_alone(name):
    sampler = ANY[name]()
    scramble(3)
    own, before = getattr(getattr(sampler, "rng", None), "getstate", lambda: None), rng_fingerprint()
    state = own()
    for unit in itertools.islice(order(sampler, 5, 2, single=True), 3):
        assert unit is not None
        assert rng_fingerprint() == before
        assert own() == state


@pytest.mark.parametrize("name", ["global draws", "own generator"])
def test_draws_elsewhere_do_not_move_an_order_that_is_drawn_step_by_step(name):
    expected = list(order(ANY[name](), 5, 0, single=True))
    sampler = ANY[name]()
    found = []
    for unit in order(sampler, 5, 0, single=True):
        found.append(unit)
        random.random(), np.random.rand(2), torch.rand(1)
        if hasattr(sampler, "rng"):
            sampler.rng.seed(1)
    assert found == expected


def test_nothing_is_asked_of_a_sampler_ahead_of_its_batch():
    asked = []

    class Watched(GlobalSampler):
        def __iter__(self):
            for index in range(self.num_samples):
                asked.append(index)
                yield index

    batches = order(BatchSampler(Watched(20), 4, False), 5, 0, single=False)
    for number in (1, 2, 3):
        next(batches)
        assert len(asked) == 4 * number


def test_the_generators_of_a_sampler_and_of_its_batch_sampler_draw_apart():
    class Batches:
        def __init__(self, sampler):
            self.sampler, self.rng = sampler, random.Random()

        def __iter__(self):
            for index in self.sampler:
                yield [index, self.rng.randrange(self.sampler.num_samples)]

    drawn = list(order(Batches(OwnSampler(random.Random())), 5, 0, single=False))
    assert sum(one == other for one, other in drawn) < len(drawn) // 2


def test_an_error_of_a_sampler_leaves_the_generators_alone():
    class Failing(GlobalSampler):
        def __iter__(self):
            yield random.randrange(9)
            raise KeyError("no more")

    scramble(3)
    before = rng_fingerprint()
    with pytest.raises(KeyError):
        list(order(Failing(), 5, 0, single=True))
    assert rng_fingerprint() == before


@pytest.mark.parametrize("start", range(5))
def test_a_batch_sampler_whose_batches_are_taken_one_by_one_is_sought_by_batches(start):
    whole = BatchSampler(RandomSampler(range(10)), 3, False)
    assert list(order(whole, 5, start, single=True)) == list(order(whole, 5, 0, single=True))[start:]
