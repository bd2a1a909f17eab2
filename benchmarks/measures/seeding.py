"""Seeding and order: what a resumable loader costs a sample and a batch, and beside samples that take 1 ms.

An epoch of batches of B costs ``extra(B) = sample + batch / B`` more a sample than the plain loader's. Two batch sizes
give both unknowns. Workers persist, so that starting them is in no figure; making the iterator and the order is.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

from torch.utils.data import DataLoader, Dataset

from measures.report import Measure
from measures.timing import timed_in_turn
from resume_core.capture.loader import ResumableLoader

SECTION = "Seeding and order, against the plain DataLoader with shuffle=True"
SAMPLE_BOUND_US = 12.0
BATCH_BOUND_US = 60.0
SLOW_BOUND_PERCENT = 1.0

WORKERS = (0, 2)
EPOCH_SAMPLES = {1: 1024, 64: 16384}  # by batch size
SLOW_BATCH, SLOW_SAMPLES = 32, 320
SLOW_SAMPLE_S = 0.001
ROUNDS, REPEATS = 9, 5
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


class Busy(Empty):
    """Samples that occupy a core for 1 ms, told by the thread's own clock.

    Real work would vary by more than the bound; a wall clock would let a busy machine stretch our part alone.
    """

    def __getitem__(self, index: int) -> int:
        end = time.thread_time() + SLOW_SAMPLE_S
        while time.thread_time() < end:
            pass
        return index


def first(samples: list[Any]) -> Any:
    """The cheapest collate function."""
    return samples[0]


def make_loader(dataset: Dataset[Any], *, batch_size: int, num_workers: int) -> DataLoader[Any]:
    return DataLoader(
        dataset,
        batch_size=batch_size,
        shuffle=True,
        collate_fn=first,
        num_workers=num_workers,
        persistent_workers=num_workers > 0,
    )


def _run_epoch(loader: DataLoader[Any]) -> None:
    for _ in loader:
        pass


def _pair(dataset: Dataset[Any], *, batch_size: int, num_workers: int) -> tuple[Callable[[], None], ...]:
    """An epoch of the plain loader and one of ours, both run once so that workers exist."""
    plain = make_loader(dataset, batch_size=batch_size, num_workers=num_workers)
    ours = make_loader(dataset, batch_size=batch_size, num_workers=num_workers)
    ResumableLoader(ours, key=KEY, slot=0)
    epochs = partial(_run_epoch, plain), partial(_run_epoch, ours)
    for epoch in epochs:
        epoch()
    return epochs


def _extra_us(epochs: tuple[Callable[[], None], ...], *, num_samples: int, repeats: int) -> float:
    """Microseconds a sample that our epoch takes longer."""
    plain_s, ours_s = timed_in_turn(*epochs, repeats)
    return (ours_s - plain_s) / (2 * repeats * num_samples) * 1e6


def _solve(extra_us: dict[int, float]) -> tuple[float, float]:
    """Microseconds a sample and a batch from those a sample at two batch sizes."""
    (small, extra_small), (large, extra_large) = sorted(extra_us.items())
    batch = (extra_small - extra_large) / (1 / small - 1 / large)
    return extra_large - batch / large, batch


def _measure_empty(num_workers: int, *, rounds: int, repeats: int) -> list[Measure]:
    pairs = {
        size: _pair(Empty(num_samples), batch_size=size, num_workers=num_workers)
        for size, num_samples in EPOCH_SAMPLES.items()
    }
    solved = []
    for _ in range(rounds):
        extra = {
            size: _extra_us(epochs, num_samples=EPOCH_SAMPLES[size], repeats=repeats) for size, epochs in pairs.items()
        }
        solved.append(_solve(extra))
    samples, batches = zip(*solved, strict=True)
    return [
        Measure(SECTION, f"extra a sample, empty dataset, {num_workers} workers", "µs", [*samples], SAMPLE_BOUND_US),
        Measure(SECTION, f"extra a batch, empty dataset, {num_workers} workers", "µs", [*batches], BATCH_BOUND_US),
    ]


def _measure_slow(num_workers: int, *, rounds: int, repeats: int) -> Measure:
    epochs = _pair(Busy(SLOW_SAMPLES), batch_size=SLOW_BATCH, num_workers=num_workers)
    ratios = [ours_s / plain_s for plain_s, ours_s in (timed_in_turn(*epochs, repeats) for _ in range(rounds))]
    name = f"extra at 1 ms a sample (busy wait), batches of {SLOW_BATCH}, {num_workers} workers"
    return Measure(SECTION, name, "%", [(ratio - 1) * 100 for ratio in ratios], SLOW_BOUND_PERCENT)


def measure(*, quick: bool) -> list[Measure]:
    rounds, repeats = (QUICK_ROUNDS, QUICK_REPEATS) if quick else (ROUNDS, REPEATS)
    found = [row for workers in WORKERS for row in _measure_empty(workers, rounds=rounds, repeats=repeats)]
    # an epoch of slow samples is long enough for two of them to make a round
    return found + [_measure_slow(workers, rounds=rounds, repeats=1) for workers in WORKERS]
