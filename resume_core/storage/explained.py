"""Errors of a local disk, with what a user can do about them."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress

__all__ = ["explained", "explained_read"]

_FOLDER_BYTES = 4096  # a new folder takes a block, on most file systems


@contextmanager
def explained(root: str, path: str, needed_bytes: int = _FOLDER_BYTES) -> Iterator[None]:
    """Let an error of the system out with its type, naming the path, the store and the way out."""
    try:
        yield
    except OSError as error:
        if error.errno is None:
            raise
        advice = _advice(error.errno, os.path.dirname(path), needed_bytes)
        what = f"cannot write into {root}: {error.strerror}; {advice}; not written"  # the path follows
        raise OSError(error.errno, what, path) from error


class explained_read:
    """The same for a file or folder that this user may not read; a class, since thousands are read in it."""

    def __enter__(self) -> object:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, PermissionError):
            advice = (
                "written by another user, or hidden by a umask: run as who wrote it, or let this user read all of it"
            )
            what = f"cannot read {error.filename}: {error.strerror}; {advice}"
            raise PermissionError(error.errno, what, error.filename) from error


def _advice(code: int, folder: str, needed_bytes: int) -> str:
    if code == errno.EIO:
        return "the disk, or the way to it, is broken: look into the system's log, or choose another directory"
    if code not in (errno.ENOSPC, errno.EDQUOT):
        return "choose a directory that this user can write, or mend it"
    quota = " on the disk, and a quota may allow less" if code == errno.EDQUOT else ""
    missing = f"{needed_bytes} bytes are needed and {_free(folder)}{quota}"
    return f"{missing}; free some space or keep fewer checkpoints; what was there before is intact"


def _free(folder: str) -> str:
    with suppress(OSError):
        place = _existing(folder)
        inodes = os.statvfs(place) if hasattr(os, "statvfs") else None
        has_none = inodes is not None and inodes.f_files > 0 and inodes.f_favail <= 1
        return f"{shutil.disk_usage(place).free} are free{' but no inodes for new files' if has_none else ''}"
    return "fewer are free"


def _existing(folder: str) -> str:
    """The folder, or the first one above it that is there."""
    while not os.path.isdir(folder) and folder != os.path.dirname(folder):
        folder = os.path.dirname(folder)
    return folder
