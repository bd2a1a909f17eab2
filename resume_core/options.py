"""The arguments that every plugin takes, as a `Session` takes them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from resume_core.candidates import resume_mode
from resume_core.drill import is_rehearsal
from resume_core.errors import ResumeError
from resume_core.policy import Changes, Check, Keep, Preemption, SaveEvery, Watch, as_policy, plain_options
from resume_core.scratch import open_scratch
from resume_core.storage import LocalStore, absolute, refuse_unusable
from resume_core.storage.store import is_path

__all__ = ["session_options"]


def session_options(
    plugin: str,
    advice: str,
    *,
    directory: str | os.PathLike[str] | None,
    scratch: str | os.PathLike[str] | None,
    resume: str,
    save: SaveEvery | Mapping[str, Any] | None,
    keep: Keep | Mapping[str, Any] | None,
    changes: Changes | Mapping[str, Any] | None,
    preemption: Preemption | Mapping[str, Any] | None,
    check: Check | Mapping[str, Any] | None,
    watch: Watch | Mapping[str, Any] | None,
    storage_options: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Check the arguments of a plugin.

    Args:
        plugin: its class, for messages.
        advice: what users do in place of giving it a directory.
        directory: None for a plugin that completes what its framework saves.
        scratch: see `Session`, like those that follow.
        resume: what to go on from.
        save: a policy, its fields, or None for the default.
        keep: likewise.
        changes: likewise.
        preemption: likewise.
        check: likewise.
        watch: likewise.
        storage_options: nested containers of any kind.

    Returns:
        All of them, by name; local paths made absolute, as the script may change its folder before training begins.

    Raises:
        ValueError: a value is out of range, or has no effect without a directory.
        ResumeError: it has no directory, and is to rehearse.
        TypeError: a policy is of the wrong type, or has a field that there is not; or what should be a path is none.
        ImportError: the package for the protocol of the directory is missing.
        OSError: the directory is local, and this user cannot use it.
    """
    if directory is not None and resume_mode(resume) != "off":
        _refuse_unusable(directory, scratch)
    if directory is None:
        resume_mode(resume)
        given = {"resume": resume != "auto", "scratch": scratch, "save": save, "keep": keep, "preemption": preemption}
        others = {"check": check, "watch": watch, "storage_options": storage_options}
        _refuse_without_directory(plugin, advice, {**given, **others})
        if is_rehearsal():
            raise ResumeError(f"this {plugin} has no directory, so there is nothing to rehearse. Nothing was trained.")
    return {
        "directory": None if directory is None else absolute(directory),
        "scratch": None if scratch is None else absolute(scratch),
        "resume": resume,
        "save": as_policy(SaveEvery, save, "save"),
        "keep": as_policy(Keep, keep, "keep"),
        "changes": as_policy(Changes, changes, "changes"),
        "preemption": as_policy(Preemption, preemption, "preemption"),
        "check": as_policy(Check, check, "check"),
        "watch": as_policy(Watch, watch, "watch"),
        "storage_options": plain_options(storage_options, "storage_options"),
    }


def _refuse_unusable(directory: str | os.PathLike[str], scratch: str | os.PathLike[str] | None) -> None:
    """What a run could not be kept in, as far as that is certain before anything was asked over a network."""
    refuse_unusable(directory, "directory", only_read=is_rehearsal())
    if scratch is None:
        return
    if not isinstance(scratch, (str, os.PathLike)) or not os.fspath(scratch):
        raise TypeError(f"scratch must be the path of a local directory, got {scratch!r}")
    place = absolute(directory)
    open_scratch(scratch, LocalStore(place) if is_path(place) else None)


def _refuse_without_directory(plugin: str, advice: str, given: Mapping[str, Any]) -> None:
    names = [name for name, value in given.items() if value]
    if names:
        raise ValueError(
            f"without a directory {plugin} saves nothing by itself, so {' and '.join(names)} would have no effect: "
            f"give it a directory, or {advice}"
        )
