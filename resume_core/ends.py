"""Which fit of its run a checkpoint belongs to, and whether it is the end of one, as its header says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from resume_core.errors import CorruptCheckpointError
from resume_core.storage import Brief, Manifest

__all__ = ["finished_fit", "fit_of", "is_count", "unclear"]

_MAX_COUNT = 10**18  # the steps that a folder's name can hold


def finished_fit(manifest: Brief | Manifest) -> int | None:
    """The fit whose end state this is, None for a checkpoint from before its end."""
    fit, finished = fit_of(manifest)
    return None if finished is None else fit


def fit_of(manifest: Brief | Manifest) -> tuple[int, Mapping[str, Any] | None]:
    """The place of the fit that a checkpoint belongs to, and how that fit had ended.

    Raises:
        CorruptCheckpointError: as for `header_of`.
    """
    fit, finished = manifest.header.get("fit", 0), manifest.header.get("finished")
    if not is_count(fit) or not (finished is None or _is_ending(finished)):
        raise unclear(manifest, f"fit {fit!r:.80}, finished {finished!r:.80}")
    return fit, finished


def is_count(value: Any) -> bool:
    """Whether a value of a header is a number of things."""
    return type(value) is int and 0 <= value < _MAX_COUNT


def _is_ending(finished: Any) -> bool:
    if not isinstance(finished, Mapping) or type(finished.get("cause")) is not str:
        return False
    reached = finished.get("reached")
    return isinstance(reached, Mapping) and all(type(value) in (int, float) for value in reached.values())


def unclear(manifest: Brief | Manifest, problem: object) -> CorruptCheckpointError:
    """The error for a header with such a field."""
    path = manifest.ref.path
    what = repr(problem) if isinstance(problem, Exception) else problem
    return CorruptCheckpointError(f"the header of {path} cannot be understood: {what}", path=path)
