"""Workers that outlive signals, and still go when nobody feeds on them."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import time

import torch
from torch.utils.data import DataLoader, Dataset

from resume_core.capture.loader import ResumableLoader
from resume_core.capture.workers import SPARED

_GONE_S = 20.0

HALF_MADE = """
from torch.utils.data import DataLoader

from resume_core.capture.loader import ResumableLoader


class Broken:
    def __len__(self):
        return 8

    def __iter__(self):
        raise RuntimeError("a bug of the user's")


loader = DataLoader(range(8), sampler=Broken(), num_workers=2)
ResumableLoader(loader, key=1, slot=0)
next(iter(loader))
"""


class Numbers(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return torch.tensor(index)


def test_a_script_ends_that_fails_while_an_iterator_is_made():
    """multiprocessing terminates its workers then, and waits for them without end."""
    environment = {**os.environ, SPARED: "SIGTERM", "PYTHONPATH": os.pathsep.join(sys.path)}
    ended = subprocess.run(
        [sys.executable, "-c", HALF_MADE], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 1
    assert "a bug of the user's" in ended.stderr


def test_workers_in_use_outlive_the_signal(monkeypatch):
    monkeypatch.setenv(SPARED, "SIGTERM")  # as in a run that watches it
    loader = DataLoader(Numbers(), num_workers=2)
    ResumableLoader(loader, key=1, slot=0)
    before, iterator = set(multiprocessing.active_children()), iter(loader)
    next(iterator)
    workers = set(multiprocessing.active_children()) - before
    assert len(workers) == 2
    for worker in workers:
        worker.terminate()
        worker.join(1.0)
    assert all(worker.is_alive() for worker in workers)
    assert [int(batch) for batch in iterator] == [1, 2, 3, 4, 5, 6, 7]
    end_s = time.monotonic() + _GONE_S
    del iterator
    while any(worker.is_alive() for worker in workers) and time.monotonic() < end_s:
        time.sleep(0.05)
    assert not [worker for worker in workers if worker.is_alive()]
