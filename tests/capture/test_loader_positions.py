"""Where a loader is: marks, states, several iterators, samplers."""

import itertools
import json
import random

import pytest
from loader_kinds import KINDS, Run, ids, whole
from loader_parts import BATCH_SIZE, NUM_SAMPLES, CountingSampler, rng_fingerprint, scramble
from loaders import each_workers, epoch_of, make, resumed, without_persistent_workers
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler

from resume_core.capture.loader import LoaderIterator, Mark, ResumableLoader

# ---- positions


def test_a_state_is_plain_and_says_how_far_the_loader_is():
    loader, handle = make()
    handle.begin(3)
    iterator = iter(loader)
    next(iterator), next(iterator)
    state = handle.state(iterator.mark)
    assert state == json.loads(json.dumps(state))
    assert iterator.mark == Mark(epoch=3, round=0, num_batches=2)
    assert (state["epoch"], state["num_batches"], state["position"]) == (3, 2, 2 * BATCH_SIZE)


@each_workers
def test_a_state_is_of_what_was_delivered_not_of_what_was_fetched(workers):
    loader, handle = make(**workers)
    handle.begin(0)
    for number, iterator in enumerate(itertools.repeat(iter(loader), 3), start=1):
        next(iterator)
        assert handle.state(iterator.mark)["position"] == number * BATCH_SIZE


def test_the_last_few_marks_can_still_be_used_and_older_ones_are_refused():
    loader, handle = make(batch_size=1)
    handle.begin(0)
    iterator = iter(loader)
    marks = [iterator.mark, *(iterator.mark for _ in iterator)]
    expected = ids(whole_in_ones())
    for mark in marks[-7:]:
        other, other_handle = resumed(handle.state(mark), batch_size=1)
        assert ids(epoch_of(other, other_handle, 0)) == expected[mark.num_batches :]
    with pytest.raises(ValueError, match="loader 0 keeps no position for Mark"):
        handle.state(marks[3])


def whole_in_ones():
    loader, handle = make(batch_size=1)
    return epoch_of(loader, handle, 0)


@each_workers
def test_an_epoch_that_was_broken_off_does_not_move_the_next(workers):
    loader, handle = make(**workers)
    handle.begin(0)
    next(iter(loader))
    assert epoch_of(loader, handle, 1) == whole("shuffled")[1][0]


@each_workers
def test_an_epoch_may_be_broken_off_after_a_resume(workers):
    loader, handle = resumed(whole("shuffled")[0][1][2], **workers)
    handle.begin(0)
    assert next(iter(loader)) == whole("shuffled")[0][0][2]
    assert epoch_of(loader, handle, 1) == whole("shuffled")[1][0]


def test_a_state_of_another_epoch_than_the_one_that_begins_is_passed_over():
    loader, handle = resumed(whole("shuffled")[0][1][2])
    assert epoch_of(loader, handle, 2) == whole("shuffled")[2][0]


def test_without_begin_each_iterator_is_a_round_of_its_own():
    loader, _ = make()
    rounds = [list(loader) for _ in range(3)]
    assert rounds[0] == whole("shuffled")[0][0]
    assert len({tuple(ids(batches)) for batches in rounds}) == 3
    other, handle = make()
    handle.begin(0)
    assert [list(other) for _ in range(3)] == rounds


# ---- several iterators of a loader


@without_persistent_workers
def test_two_iterators_in_turn_are_two_rounds(workers):
    loader, handle = make()
    handle.begin(0)
    expected = [list(loader), list(loader)]
    loader, handle = make(**workers)
    handle.begin(0)
    pairs = list(zip(loader, loader, strict=True))
    assert [list(batches) for batches in zip(*pairs, strict=True)] == expected


@pytest.mark.parametrize("places", [(0, 1), (1, 0)])
def test_two_iterators_are_resumed_each_where_it_was(places):
    loader, handle = make()
    handle.begin(0)
    rounds = [list(loader) for _ in range(3)]
    loader, handle = make()
    handle.begin(0)
    iterators = [iter(loader), iter(loader)]
    delivered = (2, 3)
    for iterator, number in zip(iterators, delivered, strict=True):
        assert len(list(itertools.islice(iterator, number))) == number
    states = [handle.state(iterator.mark) for iterator in iterators]

    loader, handle = resumed(*(states[place] for place in places))
    handle.begin(0)
    again = [iter(loader), iter(loader)]
    for place, iterator in zip(places, again, strict=True):
        assert list(iterator) == rounds[place][delivered[place] :]
    assert list(loader) == rounds[2]


def test_a_round_is_resumed_as_that_round_and_the_next_follows():
    loader, handle = make()
    handle.begin(4)
    rounds = [list(loader) for _ in range(3)]
    handle.begin(4)
    list(loader)
    iterator = iter(loader)
    next(iterator)
    loader, other = resumed(handle.state(iterator.mark))
    other.begin(4)
    assert list(loader) == rounds[1][1:]
    assert list(loader) == rounds[2]


def test_another_epoch_may_begin_while_an_iterator_is_in_use():
    """As when one loader is given for training and for validation."""
    loader, handle = make()
    handle.begin(0)
    training, batches = iter(loader), []
    for epoch in range(1, 6):
        batches.append(next(training))
        assert epoch_of(loader, handle, epoch * 4)
        assert handle.state(training.mark)["num_batches"] == epoch
    assert batches == whole("shuffled")[0][0][:5]
    other, other_handle = resumed(handle.state(training.mark))
    assert epoch_of(other, other_handle, 0) == whole("shuffled")[0][0][5:]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stateful_loader_that_had_begun_or_was_loaded_stands_where_the_run_says(workers):
    # its sampler has a generator that was seeded from the global one, so every start has another
    first = Run.start("stateful", seed=1, generator=None)
    expected = [first.epoch(epoch) for epoch in range(3)]
    for cut in (0, 2):
        scramble(7)
        loader = KINDS["stateful"](num_workers=workers, generator=None)
        assert loader.state_dict()  # makes its first iterator
        run = Run(loader, ResumableLoader(loader, key=1, slot=0))
        run.handle.seek(expected[1][1][cut])
        assert loader.state_dict() == {}
        run.handle.begin(1)
        assert next(iter(loader)) == expected[1][0][cut]
        loader.load_state_dict(loader.state_dict())
        assert run.epoch(2)[0] == expected[2][0]


# ---- samplers


def test_what_others_change_on_a_sampler_lasts_over_a_resume():
    def build():
        return make(sampler=Stepped(), shuffle=False)

    class Stepped(CountingSampler):
        step = 1

        def __init__(self):
            super().__init__()
            self.stride = 1

        def __iter__(self):
            return iter([index * self.stride % NUM_SAMPLES for index in super().__iter__()])

    loader, handle = build()
    epoch_of(loader, handle, 0)
    handle.begin(1)
    iterator = iter(loader)
    next(iterator)
    loader.sampler.stride = 5  # for the next epoch
    next(iterator)
    state, rest = handle.state(iterator.mark), list(iterator)
    last = epoch_of(loader, handle, 2)

    scramble(5)
    loader, handle = build()
    handle.seek(state)
    assert epoch_of(loader, handle, 1) == rest
    assert epoch_of(loader, handle, 2) == last


class Forever(CountingSampler):
    def __len__(self):
        raise TypeError("it never ends")

    def __iter__(self):
        while True:
            yield random.randrange(NUM_SAMPLES)


def test_a_sampler_without_an_end_is_resumed():
    def take(loader, handle, number):
        handle.begin(0)
        iterator = iter(loader)
        return list(itertools.islice(iterator, number)), iterator

    expected, _ = take(*make(sampler=Forever(), shuffle=False), 9)
    loader, handle = make(sampler=Forever(), shuffle=False)
    _, iterator = take(loader, handle, 4)
    other = resumed(handle.state(iterator.mark), sampler=Forever(), shuffle=False)
    assert take(*other, 5)[0] == expected[4:]


def test_the_epoch_is_set_on_every_sampler():
    class Batches(BatchSampler):
        def set_epoch(self, epoch):
            self.epoch = epoch

    sampler = DistributedSampler(range(NUM_SAMPLES), 2, 0)
    batches = Batches(sampler, 2, False)
    loader, handle = make(batch_sampler=batches, batch_size=1, shuffle=False)
    epoch_of(loader, handle, 7)
    assert (batches.epoch, sampler.epoch) == (7, 7)


def test_the_seed_of_a_distributed_sampler_is_the_one_that_began_the_run():
    def build(seed):
        return make(sampler=DistributedSampler(range(NUM_SAMPLES), 2, 0, seed=seed), shuffle=False)

    loader, handle = build(7)
    expected = epoch_of(loader, handle, 1)
    handle.begin(1)
    iterator = iter(loader)
    next(iterator)
    other, other_handle = build(999)
    other_handle.seek(handle.state(iterator.mark))
    assert epoch_of(other, other_handle, 1) == expected[1:]


# ---- iterators


def test_an_iterator_has_what_the_plain_one_has():
    loader, _ = make()
    iterator = iter(loader)
    assert isinstance(iterator, LoaderIterator)
    assert iter(iterator) is iterator
    assert len(iterator) == len(loader)
    assert iterator._dataset is loader.dataset
    with pytest.raises(AttributeError, match="no_such_thing"):
        iterator.no_such_thing
    list(iterator)
    with pytest.raises(StopIteration):
        next(iterator)


@without_persistent_workers
def test_an_iterator_outlives_its_loader(workers):
    loader, handle = make(**workers)
    handle.begin(0)
    iterator = iter(loader)
    del loader
    assert list(iterator) == whole("shuffled")[0][0]


class Endless(DataLoader):
    def __iter__(self):
        while True:
            yield from super().__iter__()


@each_workers
@pytest.mark.parametrize("cut", [3, 6, 8, 12])
def test_a_loader_that_goes_over_its_data_again_and_again_is_resumed(cut, workers):
    def take(loader, number):
        iterator = iter(loader)
        return list(itertools.islice(iterator, number)), iterator

    loader, handle = make(None, Endless, **workers)
    handle.begin(0)
    expected, _ = take(loader, 16)
    loader, handle = make(None, Endless, **workers)
    handle.begin(0)
    batches, iterator = take(loader, cut)
    assert batches == expected[:cut]
    loader, other = resumed(handle.state(iterator.mark), cls=Endless, **workers)
    other.begin(0)
    assert take(loader, 16 - cut)[0] == expected[cut:]


def test_an_iterator_that_is_asked_for_elsewhere_draws_nothing():
    loader, handle = make()
    handle.begin(0)
    before = rng_fingerprint()
    loader._get_iterator()
    DataLoader.__iter__(loader)
    assert rng_fingerprint() == before


class Hoarding(DataLoader):
    """Made its iterator once and for all, as loaders do that keep their workers."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.kept = super().__iter__()

    def __iter__(self):
        for _ in range(2):
            yield next(self.kept)


def test_a_loader_that_hides_its_iterator_is_warned_of_once():
    loader, handle = make(None, Hoarding)
    handle.begin(0)
    iterator = iter(loader)
    with pytest.warns(UserWarning, match=r"Hoarding\.__iter__ yields batches"):
        next(iterator)
    assert iterator.mark is None
    next(iterator)
