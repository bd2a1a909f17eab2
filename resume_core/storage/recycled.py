"""Files of pruned checkpoints, which the next one is written over.

A file that has its blocks already is durable in about 0.7 of the time that new blocks take (ext4 and XFS: nothing is
allocated, converted or journalled but the time of change). Databases recycle the segments of their logs for the same
reason (PostgreSQL ``wal_recycle``, RocksDB ``recycle_log_file_num``). So a file of a pruned checkpoint is moved aside
instead of deleted, and the next file of its name takes its place: no more space is taken at the peak of a save than
without, one checkpoint more between saves.

A committed file must never be seen to change, by nobody. What is written over

- was written by this process, and nobody has touched it since, not even its owner, rights or attributes: it would pass
  them on. One name, the same inode, the same time of change;
- belongs to a checkpoint whose manifest is durably gone, and has a name by now that no reader asks for;
- is open or mapped nowhere: a reader may have mapped weights long ago, and reads from what was deleted as from any
  file. A write lease is granted on such a file alone (fcntl(2), F_SETLEASE).

A reader that has gone may have put pages of it into a pipe or a socket (sendfile(2)), where they still are. Writes past
the page cache leave those as they are. What does not fill a page goes through the cache, so its page is cut off first.

A lease knows of this machine's readers only, so it is done on file systems of one machine's own disks, and where they
gain by it. Everywhere else, and where anything is in the way, the file is deleted and a new one written. So it is when
a disk is full: `release_all` gives up what all stores of this process have kept.
"""

from __future__ import annotations

import ctypes
import errno
import itertools
import mmap
import os
import secrets
import signal
import stat
import struct
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

__all__ = ["Recycled", "Trace", "kept_bytes", "release_all", "trace_of"]

# Of those that write in place on a disk of this machine; others copy on write, or have readers elsewhere (statfs(2)).
_FILE_SYSTEMS = frozenset({0xEF53, 0x58465342, 0xF2F52010})  # ext2 to ext4, XFS, F2FS
_STATFS_BYTES = 512  # more than any system's struct statfs; f_type is its first word

# fcntl(2); the module fcntl lacks them
_F_SETOWN_EX, _F_OWNER_TID = 15, 0

_MOST_OWN = 4096  # files that are remembered: those of checkpoints that stay are never asked for


class Trace(NamedTuple):
    """What tells a file from another in its place, and from what somebody has made of it."""

    device: int
    inode: int
    mode: int
    owner: int
    group: int
    changed_ns: int
    """Of anything about it: content, owner, rights, names, attributes (ctime)."""

    def is_of(self, other: Trace | None) -> bool:
        """Whether both are of one file, that may have changed otherwise, as by another name."""
        return other is not None and self[:-1] == other[:-1]


class _Kept(NamedTuple):
    """A file that was moved aside: where it lies, what it is, and the process that did it, which alone has a say."""

    path: str
    trace: Trace
    size_bytes: int
    pid: int


_kept: dict[tuple[int, str], _Kept] = {}
"""What was moved aside, of all stores: by the number of the `Recycled` and the name it had."""
_numbers = itertools.count()


class Recycled:
    """The files of one store that may be written over: one of each name, moved aside into the attempt's folder.

    A kill leaves them there under temporary names, which retention removes.
    """

    def __init__(self) -> None:
        self._own: dict[str, Trace] = {}  # by path: what this process has written
        self._number = next(_numbers)
        self._lock = threading.Lock()
        weakref.finalize(self, _release, self._number)

    def wrote(self, path: str, trace: Trace | None) -> None:
        """A whole file was given its name.

        Args:
            path: where it lies.
            trace: of it, as `trace_of` gave it before.
        """
        with suppress(OSError):  # it is gone already
            found = _trace(os.lstat(path))
            if found is not None and found.is_of(trace):
                self._own[path] = found
        for old in list(self._own)[:-_MOST_OWN]:
            self._own.pop(old, None)

    def keep(self, path: str) -> bool:
        """Move a file aside whose time is over, in place of an older one of its name.

        Returns:
            False if it cannot be recycled: it is where it was.
        """
        trace = self._own.pop(path, None)
        folder, name = os.path.split(path)
        aside = os.path.join(os.path.dirname(folder), temporary_name(name, secrets.token_hex(4)))
        try:
            if trace is None or _trace(os.lstat(path)) != trace:
                return False
            os.rename(path, aside)
            found = os.lstat(aside)
        except OSError:
            return False
        kept = _Kept(aside, trace._replace(changed_ns=found.st_ctime_ns), found.st_size, os.getpid())
        with self._lock:
            older = _kept.pop((self._number, name), None)
            _kept[self._number, name] = kept
        if older is not None:
            _delete(older)
        return True

    def take(self, name: str, path: str, size_bytes: int) -> int | None:
        """Put the file that was kept under ``name`` at ``path``, with that size.

        Returns:
            Its descriptor, open for writing past the page cache; None when there is none that may be written over.
        """
        kept = _kept.pop((self._number, name), None)
        fd = None if kept is None else _move(kept, path, size_bytes)
        if kept is not None and fd is None:
            _delete(kept)
        return fd

    def release(self) -> None:
        """Delete what was moved aside."""
        _release(self._number)


def release_all() -> bool:
    """Delete what all stores of this process have moved aside: a disk is full.

    Returns:
        Whether there was anything.
    """
    return _release()


def kept_bytes(device: int) -> int:
    """Space on a device (``st_dev``) that is taken by what this process has moved aside, and can be had back."""
    kept, pid = list(_kept.values()), os.getpid()
    return sum(one.size_bytes for one in kept if one.trace.device == device and one.pid == pid)


def _move(kept: _Kept, path: str, size_bytes: int) -> int | None:
    """Move a file that was kept and open it; None where it may not be written over, or has too few blocks."""
    if kept.size_bytes < size_bytes or kept.pid != os.getpid():
        return None
    fd = -1
    try:
        fd = os.open(kept.path, os.O_WRONLY | os.O_DIRECT | os.O_NOFOLLOW | os.O_CLOEXEC)
        if _trace(os.fstat(fd)) == kept.trace and _is_alone(fd):
            os.truncate(fd, size_bytes - size_bytes % mmap.PAGESIZE)
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
    if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
        return None
    return Trace(found.st_dev, found.st_ino, found.st_mode, found.st_uid, found.st_gid, found.st_ctime_ns)


def _is_alone(fd: int) -> bool:
    """Whether no other descriptor and no mapping of a file exists in any process.

    Raises:
        OSError: they do, or a lease cannot be had here.
    """
    _tell_nobody(fd)
    fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    return True


def _tell_nobody(fd: int) -> None:
    """Keep the signal to ourselves that comes when somebody opens a file that is under a lease, and has to wait.

    SIGIO, which is the default, would end the process, and any other may have a handler of the user's. So it goes to a
    thread that blocks it and ends.

    Raises:
        OSError: the system does not let us.
    """
    is_told = []

    def own() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGURG})
        with suppress(OSError):
            fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGURG)
            fcntl.fcntl(fd, _F_SETOWN_EX, struct.pack("ii", _F_OWNER_TID, threading.get_native_id()))
            is_told.append(True)

    thread = threading.Thread(target=own, name="exact-resume-lease")
    try:
        thread.start()
    except RuntimeError as error:  # no thread can be had, as while the interpreter ends
        raise OSError(errno.EAGAIN, str(error)) from error
    thread.join()
    if not is_told:
        raise OSError(errno.EINVAL, "no signal of a lease can be sent elsewhere")


def _delete(kept: _Kept) -> None:
    if kept.pid == os.getpid():  # and not that of one that was forked off
        with suppress(OSError):  # retention removes it
            os.unlink(kept.path)


def _release(number: int | None = None) -> bool:
    """Delete what one of them has moved aside, or all have; whether there was anything that was ours."""
    had_any = False
    for key in list(_kept):
        if number in (None, key[0]) and (kept := _kept.pop(key, None)) is not None:
            had_any = had_any or kept.pid == os.getpid()
            _delete(kept)
    return had_any
