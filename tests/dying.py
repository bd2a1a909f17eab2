"""Kills the own process at a named moment of a save that goes over a scratch."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

from resume_core import saves
from resume_core.storage import CheckpointWriter
from resume_core.storage.paths import parse_checkpoint_folder

MOMENTS = (
    "before the scratch commits",
    "between the scratch and the promotion",
    "during the promotion",
    "before the directory commits",
    "after the directory has committed",
)


def _die(*_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _step(path: str) -> int:
    found = parse_checkpoint_folder(path.rsplit("/", 1)[-1])
    assert found is not None
    return found[0]


def _before(owner: Any, name: str, applies: Callable[..., bool], *, after: bool = False) -> None:
    plain = getattr(owner, name)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        hit = applies(*args)
        if hit and not after:
            _die()
        result = plain(*args, **kwargs)
        if hit:
            _die()
        return result

    setattr(owner, name, wrapped)


def die(moment: str, step: int, scratch: str) -> None:
    """Arrange for SIGKILL at ``moment`` of the first save at ``step`` or later. Only for processes made for it."""

    def concerns(place: str) -> Callable[..., bool]:
        return lambda writer, *_: (
            (writer._store.url == scratch) == (place == "scratch") and (_step(writer._slot.path) >= step)
        )

    if moment == MOMENTS[0]:
        _before(CheckpointWriter, "write_part", concerns("scratch"))
    elif moment == MOMENTS[1]:
        _before(saves, "copy_share", lambda writer, *_: _step(writer._slot.path) >= step)
    elif moment == MOMENTS[2]:
        _before(CheckpointWriter, "copy_file", concerns("directory"), after=True)
    elif moment == MOMENTS[3]:
        _before(CheckpointWriter, "commit", concerns("directory"))
    else:
        assert moment == MOMENTS[4]
        _before(CheckpointWriter, "commit", concerns("directory"), after=True)
