"""What may be gone on from: the mode that the user chose, and what the newest checkpoint says before it is read."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from resume_core.directory import open_lineage
from resume_core.errors import CheckpointNotFoundError
from resume_core.naming import is_latest, is_name, resolve
from resume_core.nearest import nearest
from resume_core.saved_header import read_preamble
from resume_core.storage import CheckpointRef, Lineage

__all__ = ["asked", "first_preamble", "line", "named_checkpoint", "open_lineage", "peek", "resume_mode", "say_off"]


_A_NAME = 'the name of a checkpoint ("attempt-0002/step-000000500", "step 500")'
_MODES = ("auto", "must", "never", "off")
_MEANT = dict.fromkeys(("yes", "true", "on", "last", "resume", "default"), "auto")
_MEANT |= dict.fromkeys(("no", "false", "none", "new"), "never")


def resume_mode(resume: str) -> str:
    """What to resume: the environment variable ``EXACT_RESUME`` wins over the argument.

    Returns:
        ``"auto"``, ``"must"`` (and for ``"latest"``), ``"never"``, ``"off"`` (the plugin does nothing), or the name of
        a checkpoint.

    Raises:
        ValueError: neither a mode nor what could be a name.
    """
    given = os.environ.get("EXACT_RESUME")
    mode = given or resume
    if isinstance(mode, str) and mode.lower() in _MODES:
        return mode.lower()
    if isinstance(mode, str) and is_name(mode):
        return "must" if is_latest(mode) and "/" not in mode else mode
    meant = _MEANT.get(str(mode).lower()) or nearest(mode, _MODES)
    end = f", got {mode!r}." + (f' Did you mean "{meant}"?' if meant else "")
    if given:
        raise ValueError(f"the environment variable EXACT_RESUME takes {', '.join(_MODES)} or {_A_NAME}{end}")
    raise ValueError(f'resume must be "auto", "must", "never" or {_A_NAME}{end}')


def asked(mode: str) -> str:
    """How a mode of `resume_mode` was asked for, so that a message names what its user can change."""
    return f"EXACT_RESUME={json.dumps(mode)}" if os.environ.get("EXACT_RESUME") else f"resume={json.dumps(mode)}"


def say_off(log: logging.Logger) -> None:
    """Say that a plugin does nothing: who has once put that into the environment may not remember it."""
    level = logging.WARNING if os.environ.get("EXACT_RESUME") else logging.INFO
    log.log(level, "%s: nothing of this run is saved, and it goes on from nothing", asked("off"))


def named_checkpoint(mode: str) -> str | None:
    """The checkpoint that a mode of `resume_mode` names, if it does."""
    return None if mode in _MODES else mode


def line(lineage: Lineage, resume: str) -> Iterator[CheckpointRef]:
    """What the mode ``resume`` offers of a run, newest first; all of the newest line for ``"never"`` as well.

    Raises:
        CheckpointNotFoundError: a checkpoint that was named is not there, or the line has nothing left.
        OSError: the store cannot be read.
    """
    name = named_checkpoint(resume)
    if name is None:
        yield from lineage.candidates()
        return
    try:
        yield resolve(lineage, name)
    except CheckpointNotFoundError as error:
        if os.environ.get("EXACT_RESUME") != resume:
            raise
        raise CheckpointNotFoundError(f"{asked(resume)}: {error}", path=error.path) from None


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
