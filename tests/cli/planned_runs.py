"""Directories of runs as `exact-resume plan` reads them, without anything that trains: claims, manifests, histories."""

from __future__ import annotations

import dataclasses
from datetime import datetime, timedelta, timezone
from pathlib import Path

from resume_core.storage import CheckpointRef, FileRecord, Lineage, LocalStore, Manifest, put_history
from resume_core.storage.digest import num_chunks

BEGIN = datetime(2026, 3, 1, tzinfo=timezone.utc)
CHUNK_BYTES = 1 << 30
SIZES = {
    "model.safetensors": 2_000_000_000,
    "training.safetensors": 4_000_000_000,
    "training.json": 50_000,
    "rank-00000.safetensors": 10_000,
}


@dataclasses.dataclass(frozen=True)
class Attempt:
    """One attempt: when it began and was heard of last, in hours of the run, and how it saved."""

    begins_h: float
    ends_h: float
    cause: str | None = None
    num_saves: int = 4
    every_s: float = 600.0
    blocked_s: float = 0.5
    durable_s: float = 6.0
    steps: int = 100
    promote_s: float | None = None


def directory(root: Path, *attempts: Attempt, num_ranks: int = 1, sizes=None, history: bool = True, keep=None) -> Path:
    """Make a run; of each attempt the newest three checkpoints are there."""
    store = LocalStore(root / "run")
    lineage = Lineage(store)
    restored: CheckpointRef | None = None
    step = 0
    for attempt in attempts or (Attempt(0, 1),):
        claim = lineage.claim(restored_from=restored, info={} if keep is None else {"keep": keep})
        refs, resumed_at = [], step
        for serial in range(attempt.num_saves):
            step += attempt.steps
            refs.append(CheckpointRef(claim.name, f"step-{step:09d}", serial))
            if serial >= attempt.num_saves - 3:
                write(store, refs[-1], attempt, step, num_ranks, sizes or SIZES)
        if history:
            put_history(store, claim.name, told(attempt, refs, resumed_at, step, restored is not None))
        restored = refs[-1] if refs else restored
    return root / "run"


def write(store, ref, attempt, step, num_ranks, sizes):
    records = tuple(
        FileRecord(name, size, CHUNK_BYTES, ("0" * 32,) * num_chunks(size, CHUNK_BYTES)) for name, size in sizes.items()
    )
    timings = {"stage_s": attempt.blocked_s, "write_s": attempt.durable_s, "commit_s": 0.01}
    header = {"progress": {"step": step}, "timings": timings, "reason": "schedule"}
    manifest = Manifest(ref.attempt, ref.name, ref.serial, num_ranks, records, header)
    store.put(f"{ref.path}/manifest.json", manifest.to_bytes())


def told(attempt, refs, resumed_at, step, is_resumed):
    """A history."""
    trained_s = attempt.num_saves * attempt.every_s
    saves = []
    for number, ref in enumerate(refs, start=1):
        save = {
            "path": ref.path,
            "batch": resumed_at + number * attempt.steps,
            "reason": "schedule",
            "trained_s": number * attempt.every_s,
            "blocked_s": attempt.blocked_s,
            "bytes": 6_000_000_000,
            "stage_s": attempt.blocked_s,
            "write_s": attempt.durable_s,
            "durable_s": attempt.durable_s,
            "end": "durable",
        }
        if attempt.promote_s is not None:
            save["promote_s"] = attempt.promote_s
        saves.append(save)
    at = {"step": step, "batch": step, "epoch": 0}
    start = {"step": resumed_at, "batch": resumed_at, "epoch": 0}
    up_s = (attempt.ends_h - attempt.begins_h) * 3600
    return {
        "host": "here",
        "started": (BEGIN + timedelta(hours=attempt.begins_h)).isoformat(),
        "first_batch_s": 60.0,
        "resumed": start if is_resumed else None,
        "seen": {
            "time": (BEGIN + timedelta(hours=attempt.ends_h)).isoformat(),
            "up_s": up_s,
            "trained_s": trained_s,
            **at,
        },
        "cause": attempt.cause,
        "why": None,
        "earlier": {"saves": 0, "blocked_s": 0.0},
        "saves": saves,
    }
