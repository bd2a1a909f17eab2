"""Strict JSON: what :func:`dumps` writes is what :func:`loads` takes, and nothing else (RFC 8259, no NaN).

Without torch, so that commands which look at what is around the tensors start at once.
"""

from __future__ import annotations

import json
import math
from typing import Any

from resume_core.collector import collector_paused
from resume_core.errors import CorruptCheckpointError

__all__ = ["dumps", "loads"]


def dumps(structure: Any) -> bytes:
    """JSON text of a structure: ASCII, without spaces, floats to the last bit.

    Raises:
        ValueError: a NaN, an infinity or a value that is not JSON; :func:`flatten` gives none of these.
    """
    return json.dumps(structure, allow_nan=False, ensure_ascii=True, separators=(",", ":")).encode("ascii")


def loads(data: bytes, *, path: str = "") -> Any:
    """The structure that :func:`dumps` wrote.

    Args:
        data: the whole text.
        path: the file it comes from, for the message.

    Raises:
        CorruptCheckpointError: not JSON, a key twice, a number that is not finite, nested too deep.
    """
    try:
        with collector_paused():
            return json.loads(
                data.decode("ascii"),
                object_pairs_hook=_unique,
                parse_float=_finite,
                parse_constant=_finite,
            )
    except (ValueError, RecursionError) as error:
        where = path or "structure"
        raise CorruptCheckpointError(
            f"{where} is not the JSON this project writes ({error}). Restore an older checkpoint.", path=path
        ) from error


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key occurs twice in one object")
    return found


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is not a finite number")
    return value
