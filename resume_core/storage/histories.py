"""``history.json`` of an attempt: put whole, in place of the one before, and read back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from resume_core.errors import CorruptCheckpointError
from resume_core.storage.interface import Store
from resume_core.storage.paths import HISTORY_FILE, join_key
from resume_core.storage.read import read_small
from resume_core.storage.sealed import JsonMapping, seal, unseal

__all__ = ["PastAttempt", "put_history", "read_history"]


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


def put_history(store: Store, attempt: str, fields: JsonMapping) -> None:
    """Write it, in place of one that is there.

    Raises:
        OSError: the store refused.
    """
    store.put(join_key(attempt, HISTORY_FILE), seal("history", {"attempt": attempt, **fields}))


def read_history(store: Store, attempt: str) -> PastAttempt | None:
    """That of an attempt; None when it left none, as attempts that were killed at once do.

    Raises:
        CorruptCheckpointError: it was altered, or says something impossible.
        OSError: the store cannot be read.
    """
    key = join_key(attempt, HISTORY_FILE)
    path = store.locate(key)
    try:
        fields = unseal("history", read_small(store, key), path)
    except FileNotFoundError:
        return None
    seen = fields.mapping("seen")
    try:
        return PastAttempt(
            attempt=fields.text("attempt"),
            host=fields.text("host"),
            started=fields.text("started"),
            seen=str(seen["time"]),
            up_s=float(seen["up_s"]),
            first_batch_s=None if fields.value("first_batch_s") is None else float(fields.value("first_batch_s")),
            trained_s=float(seen["trained_s"]),
            at={name: int(seen[name]) for name in ("step", "batch", "epoch")},
            resumed=None if fields.value("resumed") is None else fields.mapping("resumed"),
            cause=fields.optional_text("cause"),
            why=fields.optional_text("why"),
            saves=tuple(dict(one, path=str(one["path"])) for one in fields.value("saves")),
            earlier=fields.mapping("earlier"),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptCheckpointError(f"{path} cannot be used: {error}", path=path) from error
