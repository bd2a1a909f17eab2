"""When an attempt was heard of last: by its history, or by a checkpoint that it has committed since that was written.

An attempt that was killed has said nothing at its end, and its history is as old as the last time it was written. Its
newest checkpoint may be newer, and says when it was taken, how far training had come, and for how long it had trained.
Of one that is deleted by now, the claim of the attempt that went on from it says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from typing import Any

from resume_core.errors import CheckpointNotFoundError, CorruptCheckpointError
from resume_core.storage import Attempt, CheckpointRef, Lineage, Manifest, PastAttempt, read_history
from resume_core.storage.newer import by_step

__all__ = ["read_heard"]

_MOST_LOOKED_AT = 3  # a save in flight has a folder and no manifest
_ROUNDED_S = 1.0


def read_heard(lineage: Lineage, attempt: str, attempts: Iterable[Attempt]) -> PastAttempt | None:
    """The history of an attempt, brought up to its newest checkpoint where it ended without a word.

    Args:
        lineage: of the run.
        attempt: its folder.
        attempts: all of the run: each is read from its claim, and whoever asks for many of them has them once.

    Returns:
        None when it left no history, as attempts that were killed at once do.

    Raises:
        CorruptCheckpointError: the history was altered, or says something impossible.
        OSError: the store cannot be read.
    """
    past = read_history(lineage.store, attempt)
    if past is None or past.cause is not None:
        return past
    if (newest := _newest(lineage, attempt)) is not None:
        with suppress(KeyError, TypeError, ValueError):  # a manifest somebody has made
            past = _brought_up(past, newest.ref.path, newest.header)
    for later in attempts:
        if later.restored_from is not None and later.restored_from.attempt == attempt:
            with suppress(KeyError, TypeError, ValueError):  # one of an older release, or that somebody has made
                past = _brought_up(past, later.restored_from.path, later.info["restored_header"])
    return past


def _newest(lineage: Lineage, attempt: str) -> Manifest | None:
    """The committed checkpoint of the greatest step; those of one attempt come in that order."""
    names = sorted(lineage.names(attempt), key=by_step, reverse=True)
    for name in names[:_MOST_LOOKED_AT]:
        try:
            return lineage.read_manifest(CheckpointRef(attempt, name))
        except (CheckpointNotFoundError, CorruptCheckpointError):
            continue
    return None


def _brought_up(past: PastAttempt, path: str, header: Mapping[str, Any]) -> PastAttempt:
    progress, trained_s = header["progress"], float(header["trained_s"])
    at = {name: int(progress[name]) for name in ("step", "batch", "epoch")}
    taken, seen = datetime.fromisoformat(header["time"]), datetime.fromisoformat(past.seen)
    later_s = (taken - seen).total_seconds()
    if later_s <= 0 and at["batch"] <= past.at["batch"]:
        return past  # one of before, or one of an earlier attempt that this one has adopted
    later_s = max(later_s, 0.0)  # times were whole seconds once, and a clock may be set back
    if not 0 <= trained_s <= past.up_s + later_s + _ROUNDED_S:
        return past
    return replace(
        past,
        seen=past.seen if taken < seen else str(header["time"]),
        up_s=max(past.up_s + later_s, trained_s),
        trained_s=max(past.trained_s, trained_s),
        at=at if at["batch"] >= past.at["batch"] else past.at,
        saves=_with_save(past, path, header, trained_s, at["batch"]),
    )


def _with_save(
    past: PastAttempt, path: str, header: Mapping[str, Any], trained_s: float, batch: int
) -> tuple[Mapping[str, Any], ...]:
    """Its saves, that one among them, which has ended well."""
    facts: dict[str, Any] = {"path": path, "reason": str(header.get("reason") or ""), "time": str(header["time"])}
    facts |= {"trained_s": trained_s, "batch": batch, "end": "durable"}
    if any(save["path"] == path for save in past.saves):
        return tuple({**facts, **save, "end": "durable"} if save["path"] == path else save for save in past.saves)
    return (*past.saves, facts)
