"""Loaders under the control of a handle, as the tests of loaders make them."""

from __future__ import annotations

import json

import pytest
from loader_parts import BATCH_SIZE, Collate, Samples, scramble
from torch.utils.data import DataLoader

from resume_core.capture.loader import ResumableLoader

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
