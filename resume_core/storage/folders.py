"""Folders of a local disk whose names outlive a power cut."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["make_folder", "naming", "sync_folder"]

# What fsync(2) answers for a folder where the file system has no such notion.
_NO_FOLDER_SYNC = frozenset({errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP})


def make_folder(path: str) -> None:
    """Create a folder and those above it, each durable in its parent. One that exists is fine.

    Raises:
        NotADirectoryError: a file is in the way.
        OSError: whatever else the system says.
    """
    try:
        _make_last_folder(path)
    except FileNotFoundError:
        parent = os.path.dirname(path)
        if parent == path:
            raise
        if not os.path.isdir(parent):
            make_folder(parent)
        # once: another process may have made the parent meanwhile, and /proc says so of what cannot be made at all
        _make_last_folder(path)


def _make_last_folder(path: str) -> None:
    try:
        os.mkdir(path)
    except FileExistsError:
        if not os.path.isdir(path):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path) from None
    else:
        sync_folder(os.path.dirname(path))


def sync_folder(path: str) -> None:
    """Make names that were created, renamed or removed in a folder durable, where the file system can."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with naming(path):
            os.fsync(fd)
    except OSError as error:
        if error.errno not in _NO_FOLDER_SYNC:
            raise
    finally:
        os.close(fd)


@contextmanager
def naming(path: str) -> Iterator[None]:
    """Add the path to errors of calls that only know a descriptor."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = path
        raise
