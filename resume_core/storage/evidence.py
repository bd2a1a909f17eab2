"""Small reports beside an attempt's checkpoints: what each rank has recorded behind saves, and how a check ended.

Like ``history.json``, each is one file that is put whole, in place of the one before: it cannot be torn, there is no
list of them to keep, and nothing of it has to be deleted with a checkpoint.
"""

from __future__ import annotations

from typing import Any

from resume_core.storage.interface import Store
from resume_core.storage.paths import CHECK_FILE, evidence_file
from resume_core.storage.reports import put_report, read_report
from resume_core.storage.sealed import JsonMapping

__all__ = ["put_check", "put_evidence", "read_check", "read_evidence"]


def put_evidence(store: Store, attempt: str, rank: int, saves: list[Any]) -> None:
    """What a rank has recorded; nothing where the claim of the attempt is gone, as for every report.

    Raises:
        OSError: the store refused.
    """
    put_report(store, attempt, evidence_file(rank), "evidence", {"rank": rank, "saves": saves})


def read_evidence(store: Store, attempt: str, rank: int) -> list[Any]:
    """What a rank had recorded in an attempt; empty when it left nothing.

    Raises:
        CorruptCheckpointError: it was altered, or is none.
        OSError: the store cannot be read.
    """
    fields = read_report(store, attempt, evidence_file(rank), "evidence")
    return [] if fields is None else [save.values for save in fields.objects("saves")]


def put_check(store: Store, attempt: str, result: JsonMapping) -> None:
    """How the check of an attempt ended; see `put_evidence`.

    Raises:
        OSError: the store refused.
    """
    put_report(store, attempt, CHECK_FILE, "check", {"result": dict(result)})


def read_check(store: Store, attempt: str) -> dict[str, Any] | None:
    """How the check of an attempt ended; None where there was none.

    Raises:
        CorruptCheckpointError: it was altered, or is none.
        OSError: the store cannot be read.
    """
    fields = read_report(store, attempt, CHECK_FILE, "check")
    return None if fields is None else fields.mapping("result")
