"""Runs with a past, as reports tell it: attempts that were killed, curves, saves and checks; nothing trains."""

from __future__ import annotations

import math
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from resume_core.storage import CheckpointRef, FileRecord, Lineage, LocalStore, Manifest, put_history
from resume_core.storage.sealed import seal

BEGIN = datetime(2026, 3, 1, 8, tzinfo=timezone.utc)
STEP_S = 1.5
EVERY = 50
RECORD = FileRecord("model.safetensors", 1000, 1 << 24, ("0" * 32,))
# number of steps, minutes until the next one starts, what ended it, why
PAST = ((430, 12, None, None), (610, 3, "preempted", "SIGTERM"), (240, 95, "failed", "RuntimeError: CUDA error"))
PAST = (*PAST, (500, 0, "finished", None))


def told(root: Path, *, name: str = "run", loss: str = "train_loss", why: str = "", past=PAST) -> Path:
    """Make a run of as many attempts; of each, the last steps were trained again by the next."""
    store = LocalStore(root / name)
    lineage = Lineage(store)
    restored, begins, step, value = None, BEGIN, 0, 7
    for number, (num_steps, pause_min, cause, reason) in enumerate(past):
        accepted = [{"name": "seed", "severity": "run", "saved": value, "current": value + 1000}] if number == 1 else []
        claim = lineage.claim(restored_from=restored, info={"accepted": accepted})
        refs = [
            _saved(store, claim.name, serial, step + serial * EVERY, loss)
            for serial in range(1, num_steps // EVERY + 1)
        ]
        fields = _history(refs, begins, step, num_steps, restored is not None, cause, why if reason and why else reason)
        put_history(store, claim.name, fields)
        if restored is not None:
            result = {"verdict": "same", "steps": 3, "num_rows": 0, "rows": [], "reason": ""}
            store.put(f"{claim.name}/check.json", seal("check", {"attempt": claim.name, "result": result}))
        begins += timedelta(seconds=40 + num_steps * STEP_S, minutes=pause_min)
        step += num_steps // EVERY * EVERY
        restored = refs[-1]
    return root / name


def curve(step: int) -> float:
    return 2.4 * math.exp(-step / 420) + 0.25 + 0.06 * math.sin(step / 9)


def _saved(store: LocalStore, attempt: str, serial: int, step: int, loss: str) -> CheckpointRef:
    metrics = {loss: curve(step), "val_accuracy": 1 - curve(step) / 3}
    header = {"progress": {"step": step, "batch": step, "epoch": step // 300}, "metrics": metrics, "reason": "schedule"}
    manifest = Manifest(attempt, f"step-{step:09d}", serial, 1, (RECORD,), header)
    store.put(f"{manifest.ref.path}/manifest.json", manifest.to_bytes())
    return manifest.ref


def _history(
    refs: list[CheckpointRef], begins: datetime, step: int, num_steps: int, is_resumed: bool, cause: Any, why: Any
) -> dict[str, Any]:
    first_batch_s = 40.0
    saves = []
    for number, ref in enumerate(refs, start=1):
        trained_s = number * EVERY * STEP_S
        noise = 1 + 0.3 * math.sin(number * 5)
        save = {"path": ref.path, "step": step + number * EVERY, "batch": step + number * EVERY, "reason": "schedule"}
        save["time"] = (begins + timedelta(seconds=first_batch_s + trained_s)).isoformat()
        save |= {"trained_s": trained_s, "blocked_s": 0.8 * noise, "durable_s": 21 * noise, "bytes": 6_000_000_000}
        saves.append(save | {"end": "durable"})
    up_s = first_batch_s + num_steps * STEP_S
    at = {"step": step + num_steps, "batch": step + num_steps, "epoch": (step + num_steps) // 300}
    return {
        "host": f"gpu-{step % 7}.cluster",
        "started": begins.isoformat(),
        "first_batch_s": first_batch_s,
        "resumed": {"step": step, "batch": step, "epoch": step // 300} if is_resumed else None,
        "seen": {
            "time": (begins + timedelta(seconds=up_s)).isoformat(),
            "up_s": up_s,
            "trained_s": num_steps * STEP_S,
            **at,
        },
        "cause": cause,
        "why": why,
        "earlier": {"saves": 0, "blocked_s": 0.0},
        "losses": [[each, curve(each)] for each in range(step + 1, step + num_steps + 1, 5)],
        "saves": saves,
    }
