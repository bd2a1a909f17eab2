"""Files of pruned checkpoints, which the next one is written over.

A file that has its blocks already is durable in about 0.7 of the time that new blocks take (ext4 and XFS: nothing is
allocated, converted or journalled but the time of change). Databases recycle the segments of their logs for the same
reason (PostgreSQL ``wal_recycle``, RocksDB ``recycle_log_file_num``). So a file of a pruned checkpoint is moved aside
instead of deleted, and the next file of its name takes its place: no more space is taken at the peak of a save than
without, one checkpoint more between saves.

A committed file must never be seen to change, by nobody. What is written over

- was written by this process, and is still that file: one name, the same inode, the same rights;
- belongs to a checkpoint whose manifest is durably gone, and has a name by now that no reader asks for;
- is open or mapped nowhere: a reader may have mapped weights long ago, and reads from what was deleted as from any
  file. A write lease is granted on such a file alone (fcntl(2), F_SETLEASE).

A lease knows of this machine's readers only, so it is done on file systems of one machine's own disks, and where they
gain by it. Everywhere else, and where anything is in the way, the file is deleted and a new one written.
"""

from __future__ import annotations

import ctypes
import os
import secrets
import signal
import stat
import sys
import threading
import weakref
from contextlib import suppress
from typing import NamedTuple

from resume_core.storage.paths import temporary_name

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

__all__ = ["Recycled", "Trace", "trace_of"]

# Of those that write in place on a disk of this machine; others copy on write, or have readers elsewhere (statfs(2)).
_FILE_SYSTEMS = frozenset({0xEF53, 0x58465342, 0xF2F52010})  # ext2 to ext4, XFS, F2FS
_STATFS_BYTES = 512  # more than any system's struct statfs; f_type is its first word

Trace = tuple[int, int, int]
"""What tells a file from another in its place: device, inode, kind and rights."""


class _Kept(NamedTuple):
    """A file that was moved aside: where it lies, what it is, and the process that did it, which alone has a say."""

    path: str
    trace: Trace
    size_bytes: int
    pid: int


class Recycled:
    """The files of one store that may be written over: one of each name, moved aside into the attempt's folder.

    A kill leaves them there under temporary names, which retention removes.
    """

    def __init__(self) -> None:
        self._own: dict[str, Trace] = {}  # by path: what this process has written
        self._kept: dict[str, _Kept] = {}  # by the name they had
        self._lock = threading.Lock()
        weakref.finalize(self, _delete_all, self._kept)

    def wrote(self, path: str, trace: Trace | None) -> None:
        """A whole file was given its name.

        Args:
            path: where it lies.
            trace: of it, as `trace_of` gave it.
        """
        if trace is not None:
            self._own[path] = trace

    def keep(self, path: str) -> bool:
        """Move a file aside whose time is over, in place of an older one of its name.

        Returns:
            False if it cannot be recycled: it is where it was.
        """
        trace = self._own.pop(path, None)
        folder, name = os.path.split(path)
        aside = os.path.join(os.path.dirname(folder), temporary_name(name, secrets.token_hex(4)))
        try:
            found = os.lstat(path)
            if trace is None or _trace(found) != trace:
                return False
            os.rename(path, aside)
        except OSError:
            return False
        with self._lock:
            older = self._kept.pop(name, None)
            self._kept[name] = _Kept(aside, trace, found.st_size, os.getpid())
        if older is not None:
            _delete(older)
        return True

    def take(self, name: str, path: str, size_bytes: int) -> int | None:
        """Put the file that was kept under ``name`` at ``path``, with that size.

        Returns:
            Its descriptor, open for writing past the page cache; None when there is none that may be written over.
        """
        with self._lock:
            kept = self._kept.pop(name, None)
        fd = None if kept is None else _move(kept, path, size_bytes)
        if kept is not None and fd is None:
            _delete(kept)
        return fd

    @property
    def size_bytes(self) -> int:
        """Space that is taken by what was moved aside."""
        return sum(kept.size_bytes for kept in list(self._kept.values()))

    def release(self) -> bool:
        """Delete what was moved aside.

        Returns:
            Whether there was anything.
        """
        with self._lock:
            return _delete_all(self._kept)


def _move(kept: _Kept, path: str, size_bytes: int) -> int | None:
    """Move a file that was kept and open it; None where it may not be written over, or has too few blocks."""
    if kept.size_bytes < size_bytes or kept.pid != os.getpid():
        return None
    fd = -1
    try:
        fd = os.open(kept.path, os.O_WRONLY | os.O_DIRECT | os.O_NOFOLLOW | os.O_CLOEXEC)
        if _trace(os.fstat(fd)) == kept.trace and _is_alone(fd):
            os.truncate(fd, size_bytes)
            os.rename(kept.path, path)
            return fd
    except OSError:
        pass
    if fd >= 0:
        os.close(fd)
    return None


def trace_of(fd: int) -> Trace | None:
    """The trace of a file that may be recycled once its time is over; None where none can be, or nothing is gained."""
    if sys.platform != "linux":
        return None
    found = ctypes.create_string_buffer(_STATFS_BYTES)
    if ctypes.CDLL(None).fstatfs(fd, found) != 0:
        return None
    kind = ctypes.c_ulong.from_buffer(found).value & 0xFFFFFFFF
    return _trace(os.fstat(fd)) if kind in _FILE_SYSTEMS else None


def _trace(found: os.stat_result) -> Trace | None:
    is_sole = stat.S_ISREG(found.st_mode) and found.st_nlink == 1
    return (found.st_dev, found.st_ino, found.st_mode) if is_sole else None


def _is_alone(fd: int) -> bool:
    """Whether no other descriptor and no mapping of a file exists in any process.

    Raises:
        OSError: they do, or a lease cannot be had here.
    """
    # Who opens it in this very moment has to wait, and we are sent a signal: not SIGIO, which would end the process.
    fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGURG)
    fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    return True


def _delete(kept: _Kept) -> None:
    if kept.pid == os.getpid():  # and not that of one that was forked off
        with suppress(OSError):  # retention removes it
            os.unlink(kept.path)


def _delete_all(kept: dict[str, _Kept]) -> bool:
    had_any = bool(kept)
    while kept:
        _delete(kept.popitem()[1])
    return had_any
