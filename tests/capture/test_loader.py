import copy
import gc
import itertools
import json
import multiprocessing
import pickle
import random
import weakref

import numpy as np
import pytest
import torch
from loader_kinds import (
    BATCH_SIZE,
    KINDS,
    NUM_SAMPLES,
    Collate,
    CountingSampler,
    Keyed,
    Relaying,
    Run,
    Samples,
    ids,
    rng_fingerprint,
    scramble,
    whole,
)
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    SequentialSampler,
    default_collate,
    get_worker_info,
)

from resume_core.capture.loader import LoaderIterator, Mark, ResumableLoader, is_resumable, loader_warnings

module_rng = random.Random(0)
WORKERS = [{}, {"num_workers": 1}, {"num_workers": 2, "persistent_workers": True}]
each_workers = pytest.mark.parametrize("workers", WORKERS, ids=["no worker", "a worker", "persistent workers"])
without_persistent_workers = pytest.mark.parametrize("workers", WORKERS[:2], ids=["no worker", "a worker"])


def make(dataset=None, cls=DataLoader, *, key=2026, slot=0, **options):
    options = {"batch_size": BATCH_SIZE, "shuffle": True, "collate_fn": Collate(), **options}
    loader = cls(Samples() if dataset is None else dataset, **options)
    return loader, ResumableLoader(loader, key=key, slot=slot)


def resumed(*states, **options):
    scramble(99)
    loader, handle = make(**options)
    for state in states:
        handle.seek(json.loads(json.dumps(state)))
    return loader, handle


def epoch_of(loader, handle, epoch):
    handle.begin(epoch)
    return list(loader)


# ---- the loader stays the user's


def test_a_loader_looks_as_it_did():
    loader = Relaying(Samples(), BATCH_SIZE, shuffle=True, scale=2.0)
    before = dict(vars(loader))
    handle = ResumableLoader(loader, key=1, slot=0)
    assert isinstance(loader, Relaying)
    assert type(loader).__name__ == "Relaying"
    assert type(loader).__module__ == Relaying.__module__
    assert all(vars(loader)[name] is value for name, value in before.items())
    assert handle.loader is loader
    assert ResumableLoader.of(loader) is handle


@each_workers
def test_a_released_loader_is_what_it_was(workers):
    loader, handle = make(Samples(), Relaying, shuffle=False, **workers)
    before = {name: value for name, value in vars(loader).items() if name != "_exact_resume"}
    epoch_of(loader, handle, 0)
    handle.release()
    handle.release()
    assert type(loader) is Relaying
    assert vars(loader) == before
    assert ResumableLoader.of(loader) is None
    assert ids(list(loader)) == list(range(NUM_SAMPLES))


@each_workers
def test_a_released_loader_can_be_taken_over_again(workers):
    loader, handle = make(**workers)
    expected = epoch_of(loader, handle, 1)
    handle.release()
    again = ResumableLoader(loader, key=2026, slot=0)
    assert epoch_of(loader, again, 1) == expected


def test_running_persistent_workers_change_over_to_the_seeded_order():
    loader = DataLoader(Samples(), BATCH_SIZE, num_workers=1, persistent_workers=True, collate_fn=Collate())
    list(loader)
    workers = loader._iterator._workers
    handle = ResumableLoader(loader, key=2026, slot=0)
    assert not any(worker.is_alive() for worker in workers)
    expected_loader, expected_handle = make(shuffle=False)
    assert epoch_of(loader, handle, 0) == epoch_of(expected_loader, expected_handle, 0)


@pytest.mark.parametrize("copying", [copy.copy, copy.deepcopy, lambda loader: pickle.loads(pickle.dumps(loader))])
def test_a_copy_of_a_loader_is_a_plain_loader(copying):
    loader, handle = make(Samples(), Relaying, shuffle=False, scale=3.0)
    copied = copying(loader)
    assert type(copied) is Relaying
    assert copied.scale == 3.0
    assert ResumableLoader.of(copied) is None
    assert ids(list(copied)) == list(range(NUM_SAMPLES))
    assert ResumableLoader.of(loader) is handle


def test_a_loader_made_from_the_class_of_another_can_be_taken_over():
    loader, handle = make()
    other = type(loader)(Samples(), BATCH_SIZE, shuffle=True, collate_fn=Collate())
    assert sorted(ids(list(other))) == list(range(NUM_SAMPLES))
    other_handle = ResumableLoader(other, key=2026, slot=0)
    assert epoch_of(other, other_handle, 0) == epoch_of(loader, handle, 0)
    other_handle.release()
    assert type(other) is DataLoader


class Telling(Dataset):
    """What a worker sees around it."""

    def __init__(self):
        self.secret = None

    def __len__(self):
        return 8

    def __getitem__(self, index):
        worker = get_worker_info()
        return worker is None or worker.dataset is self, self.secret, None if worker is None else worker.id


def tell(worker_id):
    own = [random.random(), np.random.rand(), torch.rand(1).item(), torch.initial_seed()]
    get_worker_info().dataset.secret = (worker_id, *own)


@each_workers
def test_a_worker_has_the_dataset_of_the_user(workers):
    loader, handle = make(Telling(), collate_fn=list, **workers)
    assert all(is_own for batch in epoch_of(loader, handle, 0) for is_own, _, _ in batch)


@pytest.mark.parametrize("persistent", [False, True])
def test_worker_init_fn_draws_the_same_after_a_resume(persistent):
    options = {"num_workers": 2, "persistent_workers": persistent, "worker_init_fn": tell, "collate_fn": list}
    options |= {"dataset": Telling(), "batch_size": 2}

    def secrets(batches):
        return {worker: secret for batch in batches for _, secret, worker in batch}

    loader, handle = make(**options)
    epochs = [secrets(epoch_of(loader, handle, epoch)) for epoch in range(2)]
    assert len(epochs[1]) == 2
    assert epochs[1][0] != epochs[1][1]
    assert (epochs[0] == epochs[1]) == persistent
    handle.begin(1)
    iterator = iter(loader)
    next(iterator)
    other, other_handle = resumed(handle.state(iterator.mark), **options)
    assert secrets(epoch_of(other, other_handle, 1)) == epochs[1]


# ---- the training RNG


@each_workers
def test_making_an_iterator_draws_nothing(workers):
    loader, handle = make(generator=torch.Generator(), **workers)
    own = loader.generator.get_state()
    before = rng_fingerprint()
    for epoch in range(2):
        handle.begin(epoch)
        iter(loader)
        assert rng_fingerprint() == before
        assert torch.equal(loader.generator.get_state(), own)


class Failing(Samples):
    def __getitem__(self, index):
        sample = super().__getitem__(index)
        if index == 5:
            raise KeyError("sample 5 is broken")
        return sample


@without_persistent_workers
def test_a_dataset_that_raises_leaves_the_training_rng_as_it_was(workers):
    loader, handle = make(Failing(), shuffle=False, **workers)
    handle.begin(0)
    before, iterator = rng_fingerprint(), iter(loader)
    next(iterator)
    with pytest.raises(KeyError, match="sample 5 is broken"):
        next(iterator)
    assert rng_fingerprint() == before
    assert handle.state(iterator.mark)["position"] == BATCH_SIZE
    list(iterator)  # an idle worker that has raised takes torch seconds to end


@each_workers
def test_draws_of_the_training_loop_do_not_move_the_data(workers):
    loader, handle = make(**workers)
    handle.begin(0)
    batches = []
    for number, batch in enumerate(loader):
        batches.append(batch)
        for _ in range(number):
            random.gauss(0, 1), np.random.randn(), torch.rand(3)
    assert batches == whole("shuffled")[0][0]


# ---- draws


def rows(batches):
    return [tuple(row) for batch in batches for row in batch["rows"]]


def test_no_two_samples_epochs_slots_keys_or_rounds_draw_alike():
    drawn = []
    for key, slot in ((1, 0), (1, 1), (2, 0)):
        loader, handle = make(key=key, slot=slot, shuffle=False)
        for epoch in (0, 1):
            handle.begin(epoch)
            drawn += rows(loader) + rows(loader)
    assert len(drawn) == 3 * 2 * 2 * NUM_SAMPLES
    for column in itertools.islice(zip(*drawn, strict=True), 1, None):
        assert len(set(column)) > len(column) - 3  # torch is seeded by 32 bits


def test_orders_differ_between_epochs_rounds_slots_and_keys():
    orders = []
    for key, slot in ((1, 0), (1, 1), (2, 0)):
        loader, handle = make(key=key, slot=slot)
        for epoch in (0, 1):
            handle.begin(epoch)
            orders += [tuple(ids(list(loader))), tuple(ids(list(loader)))]
    assert len(set(orders)) == 12


def test_a_generator_of_the_users_decides_the_order_with_the_key():
    orders = []
    for key, seed in ((1, 42), (1, 43), (2, 42), (1, 42)):
        loader, handle = make(key=key, generator=torch.Generator().manual_seed(seed))
        orders.append(tuple(ids(epoch_of(loader, handle, 0))))
    assert len(set(orders)) == 3
    assert orders[0] == orders[3]


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


# ---- memory and processes


@each_workers
def test_loader_and_dataset_are_freed_without_a_collection(workers):
    gc.collect()
    gc.disable()
    try:
        loader, handle = make(**workers)
        epoch_of(loader, handle, 0)
        freed = weakref.ref(loader), weakref.ref(loader.dataset), weakref.ref(handle)
        del loader, handle
        assert [reference() for reference in freed] == [None, None, None]
    finally:
        gc.enable()


def test_persistent_workers_end_when_the_loader_is_dropped():
    loader, handle = make(num_workers=2, persistent_workers=True)
    epoch_of(loader, handle, 0)
    workers = loader._iterator._workers
    assert all(worker.is_alive() for worker in workers)
    del loader, handle
    assert not any(worker.is_alive() for worker in workers)


def test_a_handle_says_when_its_loader_is_gone():
    loader, handle = make(slot=3)
    del loader
    with pytest.raises(ReferenceError, match="loader 3 of the run"):
        handle.loader


@pytest.mark.slow
@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_workers_that_are_not_forked_draw_the_same(method):
    context = multiprocessing.get_context(method)
    if method == "forkserver":
        context.set_forkserver_preload(["loader_kinds"])
    workers = {"num_workers": 1, "persistent_workers": True, "multiprocessing_context": context}
    batches, states = whole("portable")[1]
    run = Run.start("portable", 77, states[2], **workers)
    assert run.epoch(1)[0] == batches[2:]
    assert run.epoch(2)[0] == whole("portable")[2][0]


# ---- what is said about a loader


class Streaming(IterableDataset):
    def __iter__(self):
        return iter(range(4))


class UsesAModule(Samples):
    def __getitem__(self, index):
        return module_rng.random()


class SamplesByAModule(SequentialSampler):
    def __iter__(self):
        return iter([module_rng.randrange(9)])


def collate_by_a_module(samples):
    return module_rng.random()


@pytest.mark.parametrize("dataset", [Samples(), Keyed(), [1, 2, 3], {"a": 1}])
def test_any_loader_of_a_map_style_dataset_is_resumable(dataset):
    sampler = SequentialSampler(dataset)
    assert is_resumable(DataLoader(dataset, sampler=sampler))
    assert loader_warnings(DataLoader(dataset, sampler=sampler)) == []


@pytest.mark.parametrize("other", [[1, 2], Streaming(), None])
def test_what_is_no_such_loader_is_not_resumable(other):
    assert not is_resumable(other)


def test_an_iterable_dataset_is_named():
    loader = DataLoader(Streaming())
    assert not is_resumable(loader)
    [note] = loader_warnings(loader)
    assert note.startswith("Streaming is an IterableDataset")


def test_what_is_no_loader_is_named():
    [note] = loader_warnings([1, 2])
    assert note.startswith("a list is no DataLoader")


@pytest.mark.parametrize(
    "loader",
    [
        DataLoader(UsesAModule()),
        DataLoader(Samples(), collate_fn=collate_by_a_module),
        DataLoader(Samples(), sampler=SamplesByAModule(range(4))),
        DataLoader(Samples(), batch_sampler=BatchSampler(SamplesByAModule(range(4)), 2, False)),
    ],
    ids=["dataset", "collate function", "sampler", "batch sampler"],
)
def test_a_generator_of_a_module_is_named(loader):
    [note] = loader_warnings(loader)
    assert note.startswith(f"{__name__}.module_rng is a generator outside the dataset")


def test_batches_out_of_order_are_named():
    [note] = loader_warnings(DataLoader(Samples(), num_workers=1, in_order=False, collate_fn=default_collate))
    assert "in_order=False" in note


def test_what_the_samples_of_two_ranks_draw_differs_and_both_begin_with_one_order():
    found = []
    for rank in range(2):
        loader = DataLoader(Samples(12), 3, shuffle=True, collate_fn=list)
        ResumableLoader(loader, key=2026, slot=0, rank=rank, world_size=2)
        found.append([sample for batch in loader for sample in batch])
    assert [sample[0] for sample in found[0]] == [sample[0] for sample in found[1]]
    assert len({tuple(sample[1:]) for of_rank in found for sample in of_rank}) == 24


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
