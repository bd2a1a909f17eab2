"""What may be gone on from: the mode that the user chose, and what the newest checkpoint says before it is read."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from resume_core.directory import open_lineage
from resume_core.errors import CheckpointNotFoundError
from resume_core.naming import resolve
from resume_core.restore import read_preamble
from resume_core.storage import CheckpointRef, Lineage

__all__ = ["first_preamble", "line", "open_lineage", "peek", "resume_mode"]


def resume_mode(resume: str = "auto") -> str:
    """What to resume: the environment variable ``EXACT_RESUME`` wins over the argument.

    Returns:
        ``"auto"``, ``"must"``, ``"never"``, ``"off"`` (the plugin does nothing), or the name of a checkpoint.

    Raises:
        ValueError: an empty name.
    """
    mode = os.environ.get("EXACT_RESUME") or resume
    if not isinstance(mode, str) or not mode:
        raise ValueError(f'resume must be "auto", "must", "never" or the name of a checkpoint, got {mode!r}')
    return mode.lower() if mode.lower() in ("auto", "must", "never", "off") else mode


def line(lineage: Lineage, resume: str) -> Iterator[CheckpointRef]:
    """What the mode ``resume`` offers of a run, newest first; all of the newest line for ``"never"`` as well.

    Raises:
        CheckpointNotFoundError: a checkpoint that was named is not there, or the line has nothing left.
        OSError: the store cannot be read.
    """
    if resume in ("auto", "must", "never"):
        yield from lineage.candidates()
        return
    try:
        yield resolve(lineage, resume)
    except CheckpointNotFoundError as error:
        if os.environ.get("EXACT_RESUME") != resume:
            raise
        modes = "auto, must, never, off or the name of a checkpoint"
        message = f"the environment variable EXACT_RESUME takes {modes}: {error}"
        raise CheckpointNotFoundError(message, path=error.path) from error


def first_preamble(lineage: Lineage, candidates: Iterable[CheckpointRef]) -> Mapping[str, Any]:
    """What the first of ``candidates`` that can be read tells the framework; empty without any."""
    readable = (read_preamble(lineage, ref) for ref in candidates)
    return next((preamble for preamble in readable if preamble is not None), {})


def peek(
    directory: str | os.PathLike[str],
    resume: str = "auto",
    storage_options: Mapping[str, Any] | None = None,
    scratch: str | os.PathLike[str] | None = None,
) -> Mapping[str, Any]:
    """What `Session.preamble` would give, for a plugin that must know before ranks have found each other.

    Raises:
        ValueError: an unusable ``directory`` or ``resume``.
        CheckpointNotFoundError: a checkpoint that was named is not there.
        OSError: the store cannot be read.
    """
    lineage, mode = open_lineage(directory, scratch, storage_options).glance(), resume_mode(resume)
    return {} if mode == "never" else first_preamble(lineage, line(lineage, mode))
