"""``history.json`` of an attempt: put whole, in place of the one before, and read back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from resume_core.errors import CorruptCheckpointError
from resume_core.storage.interface import Store
from resume_core.storage.paths import HISTORY_FILE, join_key
from resume_core.storage.reports import put_report, read_report
from resume_core.storage.sealed import JsonMapping

__all__ = ["PastAttempt", "is_durable", "put_history", "read_history"]


@dataclass(frozen=True)
class PastAttempt:
    """What one attempt has told of itself. Times are seconds.

    Attributes:
        attempt: its folder.
        host: where rank 0 ran.
        started: when its start began, by that host's clock, as ISO 8601.
        seen: when it was heard of last, likewise.
        up_s: from the one to the other, by a clock that nobody sets.
        first_batch_s: from the start until training began; None when that never came.
        trained_s: from the first batch on, without what saves kept waiting.
        at: ``step``, ``batch`` and ``epoch`` that it had reached.
        resumed: those that it went on from; None for a new run.
        cause: ``finished``, ``preempted``, ``stopped``, ``failed``, ``superseded``; None for one that has not ended, or
            was killed.
        why: a sentence about that.
        saves: the newest of them, oldest first; each has at least ``path``.
        earlier: how many there were before those, and what they kept training waiting.
        losses: of some optimizer steps, each with its number; they may be NaN or infinite.
    """

    attempt: str
    host: str
    started: str
    seen: str
    up_s: float
    first_batch_s: float | None
    trained_s: float
    at: Mapping[str, int]
    resumed: Mapping[str, int] | None
    cause: str | None
    why: str | None
    saves: tuple[Mapping[str, Any], ...]
    earlier: Mapping[str, float]
    losses: tuple[tuple[int, float], ...] = ()


def put_history(store: Store, attempt: str, fields: JsonMapping) -> None:
    """Write it; see `put_report`.

    Raises:
        OSError: the store refused.
    """
    put_report(store, attempt, HISTORY_FILE, "history", fields)


def read_history(store: Store, attempt: str) -> PastAttempt | None:
    """That of an attempt; None when it left none, as attempts that were killed at once do.

    Raises:
        CorruptCheckpointError: it was altered, or says something impossible.
        OSError: the store cannot be read.
    """
    path, fields = store.locate(join_key(attempt, HISTORY_FILE)), read_report(store, attempt, HISTORY_FILE, "history")
    if fields is None:
        return None
    seen = fields.mapping("seen")
    try:
        return PastAttempt(
            attempt=fields.text("attempt"),
            host=fields.text("host"),
            started=fields.text("started"),
            seen=str(seen["time"]),
            up_s=_seconds(seen["up_s"]),
            first_batch_s=None if fields.value("first_batch_s") is None else float(fields.value("first_batch_s")),
            trained_s=_seconds(seen["trained_s"]),
            at=_counts(seen),
            resumed=None if fields.value("resumed") is None else _counts(fields.mapping("resumed")),
            cause=fields.optional_text("cause"),
            why=fields.optional_text("why"),
            saves=tuple(map(_save, fields.value("saves"))),
            earlier=fields.mapping("earlier"),
            losses=tuple((int(step), float(loss)) for step, loss in fields.values.get("losses", ())),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptCheckpointError(f"{path} cannot be used: {error}", path=path) from error


def _counts(found: Mapping[str, Any]) -> dict[str, int]:
    return {name: int(found[name]) for name in ("step", "batch", "epoch")}


def _seconds(value: Any) -> float:
    if not (seconds := float(value)) >= 0:
        raise ValueError(f"{value!r} seconds")
    return seconds


def _save(found: Any) -> dict[str, Any]:
    save = dict(found, path=str(found["path"]))
    if "trained_s" in save:
        save |= {"trained_s": _seconds(save["trained_s"]), "batch": int(save["batch"])}
    return save


def is_durable(save: Mapping[str, Any]) -> bool:
    """Whether one of the saves in a history came into the directory.

    That it has ended is told at the boundary after it, which a script that ends at once does not reach.
    """
    end = save.get("end")
    return end == "durable" or ("durable_s" in save and end != "failed")
