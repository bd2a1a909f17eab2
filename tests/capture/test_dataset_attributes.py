"""Scalars of training data that change while it trains are found by name."""

from __future__ import annotations

import weakref

import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset, TensorDataset, default_collate

from resume_core.capture.dataset_attributes import DatasetWatch, names_in_state_hooks, roots_of_loader


class Noise:
    def __init__(self):
        self.strength = 0.1

    def __call__(self, x):
        return x


class Compose:
    def __init__(self, *transforms):
        self.transforms = transforms

    def __call__(self, x):
        return x


class Texts(Dataset):
    def __init__(self):
        self.maxlen, self.mode, self.shuffles, self.limit = 64, "easy", False, None
        self.file, self.cache, self._count = None, {}, 0
        self.transform = Compose(Noise())

    def __getitem__(self, index):
        return index

    def __len__(self):
        return 4


def watch(dataset, **arguments):
    return DatasetWatch({"data": dataset}, **arguments)


@pytest.mark.parametrize(("name", "value"), [("maxlen", 128), ("mode", "hard"), ("shuffles", True), ("limit", 1.5)])
def test_a_scalar_that_changes_is_named_once(name, value):
    data = Texts()
    watched = watch(data)
    assert watched.changed() == []
    setattr(data, name, value)
    assert watched.changed() == [f"data.{name}"]
    assert watched.changed() == []


@pytest.mark.parametrize(
    ("wrap", "place"),
    [
        (lambda data: Subset(data, [0]), "data.dataset"),
        (lambda data: ConcatDataset([Texts(), data]), "data.datasets[1]"),
        (lambda data: Subset(ConcatDataset([data]), [0]), "data.dataset.datasets[0]"),
    ],
)
def test_what_a_wrapper_holds_is_watched(wrap, place):
    data = Texts()
    watched = watch(wrap(data))
    data.maxlen = 128
    data.transform.transforms[0].strength = 0.5
    assert watched.changed() == [f"{place}.maxlen", f"{place}.transform.transforms[0].strength"]


def test_a_collate_function_is_watched():
    collate = Noise()
    loader = DataLoader(Texts(), collate_fn=collate)
    watched = DatasetWatch(roots_of_loader("data", loader))
    collate.strength = 0.5
    assert watched.changed() == ["data's collate_fn.strength"]


def test_caches_open_files_and_private_names_are_not_named():
    data = Texts()
    watched = watch(data)
    data.cache[1] = 2
    data.file = object()
    data.seen = [1]
    data._count += 1
    data.late = torch.zeros(1)
    assert watched.changed() == []


def test_what_is_restored_or_watched_elsewhere_is_not_named():
    data = Texts()
    known, elsewhere = watch(data, known=("maxlen",)), watch(data, others={id(data)})
    data.maxlen = 128
    assert known.changed() == elsewhere.changed() == []


def test_data_without_attributes_has_none():
    for data in ([1, 2], {"a": 1}, None, torch.zeros(3)):
        assert watch(data).changed() == []
    assert DatasetWatch(roots_of_loader("data", None)).changed() == []
    assert DatasetWatch({"collate": default_collate}).changed() == []


def test_nothing_is_kept_alive():
    data = Texts()
    gone, watched = weakref.ref(data), watch(data)
    del data
    assert gone() is None
    assert watched.changed() == []


def test_names_are_read_from_hooks_that_save_and_load():
    class Saves:
        def state_dict(self):
            return {"level": 1, "other": 2}

        def load_state_dict(self, state):
            self.data.maxlen = state["level"]

        def other(self):
            self.mode = 1

    found = names_in_state_hooks([Saves(), torch.nn.Linear(1, 1)])
    assert {"level", "maxlen"} <= found
    assert "mode" not in found


class Proxy:
    """As those of frameworks for the web are, where there is no request."""

    @property
    def __class__(self):
        raise RuntimeError("stands for nothing now")


def test_what_raises_when_it_is_looked_at_is_passed_over():
    data = TensorDataset(torch.zeros(2))
    data.proxy, data.size = Proxy(), 1
    watch = DatasetWatch({"data": data})
    data.size = 2
    assert watch.changed() == ["data.size"]
