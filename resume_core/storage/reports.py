"""Small files beside ``attempt.json`` that tell of an attempt: put whole, in place of the one before, and read back."""

from __future__ import annotations

from resume_core.storage.interface import Store
from resume_core.storage.paths import ATTEMPT_FILE, join_key
from resume_core.storage.sealed import Fields, JsonMapping, seal, unseal
from resume_core.storage.small import is_there, read_small

__all__ = ["put_report", "read_report"]


def put_report(store: Store, attempt: str, name: str, kind: str, fields: JsonMapping) -> None:
    """Write one; nothing where the claim of the attempt is gone.

    A report brings no directory back that its user has deleted: the next save does, and then this comes with it.

    Args:
        store: where the attempt lies.
        attempt: its folder.
        name: of the file.
        kind: of the sealed file.
        fields: what it says, beside the attempt.

    Raises:
        OSError: the store refused.
    """
    if is_there(store, join_key(attempt, ATTEMPT_FILE)):
        store.put(join_key(attempt, name), seal(kind, {"attempt": attempt, **fields}))


def read_report(store: Store, attempt: str, name: str, kind: str) -> Fields | None:
    """What one says; None when the attempt left none. Arguments as for `put_report`.

    Raises:
        CorruptCheckpointError: it was altered, is of another kind, or that of another attempt.
        OSError: the store cannot be read.
    """
    key = join_key(attempt, name)
    try:
        fields = unseal(kind, read_small(store, key), store.locate(key))
    except FileNotFoundError:
        return None
    if (other := fields.text("attempt")) != attempt:
        fields.fail(f"it is that of {other}: files were moved")
    return fields
