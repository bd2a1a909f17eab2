"""Seeding and order: what a resumable loader costs a sample and a batch, and beside samples that take 1 ms.

An epoch of batches of B costs ``extra(B) = sample + batch / B`` more a sample than the plain loader's. Two batch sizes
give both unknowns. Workers persist, so that starting them is in no figure; making the iterator and the order is.

The cost is CPU time, summed over the training process and the workers. On an idle machine that is the wall time where
one thing happens at a time, and more than it where workers run side by side; a busy machine does not stretch it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np
from torch.utils.data import DataLoader, Dataset, get_worker_info

from measures.report import Measure
from measures.timing import in_turn
from resume_core.capture.loader import ResumableLoader

SECTION = "Seeding and order, against the plain DataLoader with shuffle=True"
SAMPLE_BOUND_US = 12.0
BATCH_BOUND_US = 60.0
SLOW_BOUND_PERCENT = 1.0

WORKERS = (0, 2)
EPOCH_SAMPLES = {1: 1024, 64: 16384}  # by batch size
SLOW_BATCH, SLOW_SAMPLES = 32, 320
SLOW_SAMPLE_S = 0.001
IMAGE_SHAPE = (64, 64, 3)  # a pass takes some 20 µs
ROUNDS, REPEATS = 9, 5
SLOW_ROUNDS = 25  # one round of them varies by more than the bound
QUICK_ROUNDS, QUICK_REPEATS = 3, 1
KEY = 2026


class Empty(Dataset[int]):
    """Samples that cost nothing."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> int:
        return index


class Working(Empty):
    """Samples that take 1 ms of a core: pixels are flipped and normalised until the thread's own clock says so.

    A fixed amount of work would vary by more than the bound, a wall clock would let a busy machine stretch our part
    alone, and a loop that only reads the clock would leave the caches to us.
    """

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.image = np.zeros(IMAGE_SHAPE, dtype=np.uint8)

    def __getitem__(self, index: int) -> int:
        end = time.thread_time() + SLOW_SAMPLE_S
        while time.thread_time() < end:
            pixels = self.image[:, ::-1].astype(np.float32)
            pixels -= 127
            pixels /= 60
        return index


def spent(samples: list[Any]) -> tuple[int, float]:
    """A collate function that ignores its samples: which worker this is, and the CPU seconds it has used so far."""
    worker = get_worker_info()
    return (-1 if worker is None else worker.id), time.process_time()


def make_loader(dataset: Dataset[Any], *, batch_size: int, num_workers: int) -> DataLoader[Any]:
    return DataLoader(
        dataset,
        batch_size=batch_size,
        shuffle=True,
        collate_fn=spent,
        num_workers=num_workers,
        persistent_workers=num_workers > 0,
    )


class Epoch:
    """One epoch of a loader a call: CPU seconds that it took."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        self.loader = loader
        self._spent: dict[int, float] = {}
        self()  # starts the workers

    def __call__(self) -> float:
        start, before = time.process_time(), self._spent
        self._spent = dict(iter(self.loader))  # of each worker, the last it said
        main_s = time.process_time() - start
        return main_s + sum(self._spent[worker] - before.get(worker, 0.0) for worker in self._spent if worker >= 0)


def _epochs(dataset: Dataset[Any], *, batch_size: int, num_workers: int) -> tuple[Epoch, Epoch]:
    """Of the plain loader, and of ours."""
    plain = make_loader(dataset, batch_size=batch_size, num_workers=num_workers)
    ours = make_loader(dataset, batch_size=batch_size, num_workers=num_workers)
    ResumableLoader(ours, key=KEY, slot=0)
    return Epoch(plain), Epoch(ours)


def _extra_us(epochs: tuple[Epoch, Epoch], *, num_samples: int, repeats: int) -> float:
    """Microseconds a sample that our epoch takes longer."""
    plain_s, ours_s = in_turn(*epochs, repeats)
    return (ours_s - plain_s) / (2 * repeats * num_samples) * 1e6


def _solve(extra_us: dict[int, float]) -> tuple[float, float]:
    """Microseconds a sample and a batch from those a sample at two batch sizes."""
    (small, extra_small), (large, extra_large) = sorted(extra_us.items())
    batch = (extra_small - extra_large) / (1 / small - 1 / large)
    return extra_large - batch / large, batch


def solved(pairs: Mapping[int, tuple[Epoch, Epoch]], *, repeats: int) -> tuple[float, float]:
    """Microseconds a sample and a batch that our epochs take longer; ``pairs`` by batch size."""
    return _solve({size: _extra_us(e, num_samples=EPOCH_SAMPLES[size], repeats=repeats) for size, e in pairs.items()})


def _measure_empty(num_workers: int, *, rounds: int, repeats: int) -> list[Measure]:
    pairs = {
        size: _epochs(Empty(num_samples), batch_size=size, num_workers=num_workers)
        for size, num_samples in EPOCH_SAMPLES.items()
    }
    samples, batches = zip(*[solved(pairs, repeats=repeats) for _ in range(rounds)], strict=True)
    return [
        Measure(SECTION, f"extra a sample, empty dataset, {num_workers} workers", "µs", [*samples], SAMPLE_BOUND_US),
        Measure(SECTION, f"extra a batch, empty dataset, {num_workers} workers", "µs", [*batches], BATCH_BOUND_US),
    ]


def _measure_slow(num_workers: int, *, rounds: int, repeats: int) -> Measure:
    epochs = _epochs(Working(SLOW_SAMPLES), batch_size=SLOW_BATCH, num_workers=num_workers)
    ratios = [ours_s / plain_s for plain_s, ours_s in (in_turn(*epochs, repeats) for _ in range(rounds))]
    name = f"extra at 1 ms of numpy work a sample, batches of {SLOW_BATCH}, {num_workers} workers"
    return Measure(SECTION, name, "%", [(ratio - 1) * 100 for ratio in ratios], SLOW_BOUND_PERCENT)


def measure(*, quick: bool) -> list[Measure]:
    rounds, repeats = (QUICK_ROUNDS, QUICK_REPEATS) if quick else (ROUNDS, REPEATS)
    found = [row for workers in WORKERS for row in _measure_empty(workers, rounds=rounds, repeats=repeats)]
    # an epoch of slow samples is long enough for two of them to make a round
    slow_rounds = rounds if quick else SLOW_ROUNDS
    return found + [_measure_slow(workers, rounds=slow_rounds, repeats=1) for workers in WORKERS]
