"""Workers that outlive signals, and still go when nobody feeds on them."""

from __future__ import annotations

import multiprocessing
import time

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from resume_core.capture.loader import ResumableLoader
from resume_core.capture.workers import SPARED

_GONE_S = 20.0


class Numbers(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return torch.tensor(index)


class Broken(Sampler):
    def __init__(self):
        pass

    def __len__(self):
        return 8

    def __iter__(self):
        raise RuntimeError("a bug of the user's")


@pytest.fixture
def spared(monkeypatch):
    """As in a run that watches this signal."""
    monkeypatch.setenv(SPARED, "SIGTERM")


def _outlives_sigterm(child):
    child.terminate()
    child.join(1.0)
    return child.is_alive()


@pytest.mark.parametrize("persistent", [False, True])
def test_workers_of_an_iterator_whose_making_fails_can_be_terminated(spared, persistent):
    """As multiprocessing does when the script ends, which waits for them then without end."""
    loader = DataLoader(Numbers(), sampler=Broken(), num_workers=2, persistent_workers=persistent)
    ResumableLoader(loader, key=1, slot=0)
    before = set(multiprocessing.active_children())
    with pytest.raises(RuntimeError, match="a bug") as caught:  # its traceback holds the iterator
        next(iter(loader))
    left = set(multiprocessing.active_children()) - before
    for child in left:
        child.terminate()
        child.join(_GONE_S)
    assert not [child for child in left if child.is_alive()]
    assert caught.tb is not None


def test_workers_in_use_outlive_the_signal(spared):
    loader = DataLoader(Numbers(), num_workers=2)
    ResumableLoader(loader, key=1, slot=0)
    before, iterator = set(multiprocessing.active_children()), iter(loader)
    next(iterator)
    workers = set(multiprocessing.active_children()) - before
    assert len(workers) == 2
    assert all(map(_outlives_sigterm, workers))
    del iterator
    end_s = time.monotonic() + _GONE_S
    while any(worker.is_alive() for worker in workers) and time.monotonic() < end_s:
        time.sleep(0.05)
    assert not [worker for worker in workers if worker.is_alive()]
