"""Seeking: seconds from ``iter(loader)`` to the first batch, fresh and late in an epoch of a million samples."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

from torch.utils.data import DataLoader

from measures.report import Measure
from measures.seeding import Empty, spent
from measures.timing import run_rotated, timed
from resume_core.capture.loader import ResumableLoader

SECTION = "First batch of an epoch of 1,000,000 samples of 1 ms (sleep), batches of 32"
FRESH_BOUND = 1.0  # times a fresh start of the plain loader
HALF_BOUND = 1.1  # times the same at half of the epoch

NUM_SAMPLES, BATCH = 1_000_000, 32
SAMPLE_S = 0.001
WORKERS = (0, 2)
ROUNDS, QUICK_ROUNDS = 15, 3
KEY = 2026


class Sleeping(Empty):
    """Samples that take 1 ms of no core."""

    def __getitem__(self, index: int) -> int:
        time.sleep(SAMPLE_S)
        return index


def _loader(num_workers: int) -> DataLoader[Any]:
    return DataLoader(Sleeping(NUM_SAMPLES), BATCH, shuffle=True, collate_fn=spent, num_workers=num_workers)


def _resumable(num_workers: int, position: dict[str, Any] | None) -> DataLoader[Any]:
    loader = _loader(num_workers)
    handle = ResumableLoader(loader, key=KEY, slot=0)
    if position is not None:
        handle.seek(position)
    return loader


def _position(fraction: float) -> dict[str, Any]:
    """What a checkpoint holds when ``fraction`` of the epoch was consumed."""
    loader = _loader(0)
    handle = ResumableLoader(loader, key=KEY, slot=0)
    iterator: Any = iter(loader)
    next(iterator)
    num_batches = int(NUM_SAMPLES * fraction) // BATCH
    return {**handle.state(iterator.mark), "num_batches": num_batches, "position": num_batches * BATCH}


def _first_batch_s(make: Callable[[], DataLoader[Any]]) -> float:
    loader, kept = make(), []

    def start() -> None:
        iterator = iter(loader)
        next(iterator)
        kept.append(iterator)  # stopping the workers is not timed

    return timed(start)


def _ratios(rounds: list[dict[str, float]], above: str, below: str) -> list[float]:
    return [found[above] / found[below] for found in rounds]


def _measure(num_workers: int, *, rounds: int) -> list[Measure]:
    starts = {
        "plain": partial(_loader, num_workers),
        "fresh": partial(_resumable, num_workers, None),
        "half": partial(_resumable, num_workers, _position(0.5)),
        "late": partial(_resumable, num_workers, _position(0.95)),
    }
    runs = {name: partial(_first_batch_s, make) for name, make in starts.items()}
    run_rotated(runs, 0)  # warms imports and the allocator
    found = [run_rotated(runs, number) for number in range(rounds)]
    late_plain, late_half = _ratios(found, "late", "plain"), _ratios(found, "late", "half")
    ms = [each["plain"] * 1e3 for each in found]
    suffix = f"{num_workers} workers"
    return [
        Measure(SECTION, f"at 95 % / plain loader's fresh start, {suffix}", "x", late_plain, FRESH_BOUND),
        Measure(SECTION, f"at 95 % / at 50 %, {suffix}", "x", late_half, HALF_BOUND),
        Measure(SECTION, f"our fresh start / plain loader's, {suffix}", "x", _ratios(found, "fresh", "plain")),
        Measure(SECTION, f"plain loader's fresh start, {suffix}", "ms", ms),
    ]


def measure(*, quick: bool) -> list[Measure]:
    rounds = QUICK_ROUNDS if quick else ROUNDS
    return [row for workers in WORKERS for row in _measure(workers, rounds=rounds)]
