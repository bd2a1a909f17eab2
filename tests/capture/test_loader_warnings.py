"""What is no resumable loader, and what is said about one that is."""

import random

import pytest
from loader_parts import Keyed, Samples
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, SequentialSampler, default_collate

from resume_core.capture.loader import is_resumable
from resume_core.capture.loader_warnings import loader_warnings

module_rng = random.Random(0)


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
