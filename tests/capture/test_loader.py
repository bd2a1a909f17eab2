import copy
import gc
import itertools
import multiprocessing
import pickle
import random
import weakref

import numpy as np
import pytest
import torch
from loader_kinds import Run, ids, whole
from loader_parts import BATCH_SIZE, NUM_SAMPLES, Collate, Relaying, Samples, rng_fingerprint
from loaders import each_workers, epoch_of, make, resumed, without_persistent_workers
from torch.utils.data import DataLoader, Dataset, get_worker_info

from resume_core.capture.loader import ResumableLoader

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


def test_what_the_samples_of_two_ranks_draw_differs_and_both_begin_with_one_order():
    found = []
    for rank in range(2):
        loader = DataLoader(Samples(12), 3, shuffle=True, collate_fn=list)
        ResumableLoader(loader, key=2026, slot=0, rank=rank, world_size=2)
        found.append([sample for batch in loader for sample in batch])
    assert [sample[0] for sample in found[0]] == [sample[0] for sample in found[1]]
    assert len({tuple(sample[1:]) for of_rank in found for sample in of_rank}) == 24


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
