"""A store in a local directory (or a mounted network one).

Each file is written to a temporary name in its own folder, synced, given its final name in one system call, and the
folder is synced, so a power cut leaves either the whole file or none. A killed process leaves at most a temporary
(``paths.temporary_name``), which readers do not see as a file of a checkpoint and retention removes.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from io import FileIO
from typing import TypeVar

from resume_core.storage.digest import BytesLike, byte_view
from resume_core.storage.direct import DirectFile
from resume_core.storage.explained import explained, explained_read
from resume_core.storage.folders import make_folder, naming, sync_folder
from resume_core.storage.interface import Names, OpenFile, Sink, Store, refuse_large
from resume_core.storage.paths import temporary_name, validate_key
from resume_core.storage.recycled import Recycled, kept_bytes, release_all, trace_of

__all__ = ["LocalStore"]

_T = TypeVar("_T")

# What link(2) answers on file systems without hard links (FAT, some FUSE and network mounts).
_NO_LINKS = frozenset({errno.EPERM, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EMLINK})

# What says that there is no space left, for anybody or for this user.
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})

# What read(2) answers for a place on the disk that has gone bad, or whose checksum does not fit (btrfs, ext4, XFS).
_LOST = frozenset({errno.EIO, errno.EBADMSG, getattr(errno, "EUCLEAN", errno.EIO)})
_READ_TRIES, _READ_PAUSE_S = 3, 0.2  # a mount over a network answers EIO for what passes

_TICK_NS = 20_000_000  # what a kernel's clock, which stamps files, may be behind: 10 ms where it ticks slowest

_MAX_VIEWS = 1024  # of one system call: IOV_MAX of Linux and macOS


class LocalStore(Store):
    """A local directory. It is created by the first write.

    Args:
        root: the directory; ``~`` and relative paths are resolved now, a later ``chdir`` changes nothing.
    """

    reads_ahead = True

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.url = os.path.abspath(os.path.expanduser(os.fspath(root)))
        self._recycled = Recycled()

    def create(self, key: str, data: bytes) -> bool:
        """See ``Store.create``. Exclusive on every file system, by link(2) or, without hard links, O_EXCL."""
        path = self._path(key)
        return not os.path.lexists(path) and _finding_room(lambda: self._create(path, data))

    def _create(self, path: str, data: bytes) -> bool:
        with self._temporary(path, len(data)) as temporary:
            write_file(temporary, data)
            made = _link(temporary, path)
            if made is None:
                return self._create_exclusively(path, data)
            if made:
                sync_folder(os.path.dirname(path))
        return made

    def put(self, key: str, data: bytes) -> None:
        """See ``Store.put``."""
        _finding_room(lambda: self._put(self._path(key), data))

    def _put(self, path: str, data: bytes) -> None:
        with self._temporary(path, len(data)) as temporary:
            write_file(temporary, data)
            os.replace(temporary, path)
            sync_folder(os.path.dirname(path))

    def open_sink(self, key: str, size_bytes: int) -> Sink:
        """See ``Store.open_sink``."""
        return _finding_room(lambda: self._open_sink(self._path(key), size_bytes))

    def _open_sink(self, path: str, size_bytes: int) -> Sink:
        self._make_parent(path)
        with explained(self.url, path, size_bytes):
            return _LocalSink(self.url, path, size_bytes, self._recycled)

    def is_lost(self, error: OSError) -> bool:
        """See ``Store.is_lost``."""
        return error.errno in _LOST

    def read(self, key: str) -> bytes:
        """See ``Store.read``."""

        def once() -> bytes:
            with open(path, "rb") as file:
                refuse_large(path, os.fstat(file.fileno()).st_size)
                return file.read()

        with _missing(self._path(key)) as path:
            return _insisting(once)

    def mark(self, key: str) -> str:
        """See ``Store.mark``. A change gives a file another time, unless it comes in the same tick of the clock.

        A clock that is wrong costs reads that were not needed, at worst.
        """
        with _missing(self._path(key)) as path:
            found = _insisting(lambda: os.stat(path))
        if time.time_ns() - found.st_ctime_ns < _TICK_NS:
            return ""
        return f"{found.st_ino}-{found.st_size}-{found.st_ctime_ns}"

    def size(self, key: str) -> int:
        """See ``Store.size``."""
        with _missing(self._path(key)) as path:
            found = _insisting(lambda: os.stat(path))
            if stat.S_ISDIR(found.st_mode):
                raise IsADirectoryError
            return found.st_size

    def read_into(self, key: str, offset_bytes: int, view: memoryview | bytearray) -> None:
        """See ``Store.read_into``."""
        self.read_scattered(key, offset_bytes, [byte_view(view)])

    def read_scattered(self, key: str, offset_bytes: int, views: Sequence[memoryview]) -> None:
        """See ``Store.read_scattered``. The kernel writes straight into the views, many of them in one call."""
        with self.open_file(key) as file:
            file.read_scattered(offset_bytes, views)

    def open_file(self, key: str) -> OpenFile:
        """See ``Store.open_file``."""
        return _LocalFile(self, key, self._path(key))

    def list(self, prefix: str) -> Names:
        """See ``Store.list``."""
        path = self._path(prefix) if prefix else self.url
        try:
            with explained_read():
                return _insisting(lambda: sorted(os.listdir(path)))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def exists(self, key: str) -> bool:
        """See ``Store.exists``."""
        try:
            self.size(key)
        except FileNotFoundError:
            return False
        return True

    def delete(self, key: str) -> None:
        """See ``Store.delete``. A symbolic link is removed, not what it points to; behind one nothing is."""
        path = self._path(key)
        if self._link_above(path) is not None:
            return
        with suppress(FileNotFoundError, NotADirectoryError):
            os.unlink(path)
            # Deletions are ordered (the manifest goes first), after a power cut too.
            sync_folder(os.path.dirname(path))

    def recycle(self, key: str) -> None:
        """See ``Store.recycle``."""
        path = self._path(key)
        is_deep = key.count("/") > 1  # what is kept lies two levels up, and never outside
        if is_deep and self._link_above(path) is None and self._recycled.keep(path):
            sync_folder(os.path.dirname(path))
        else:
            self.delete(key)

    def release(self) -> None:
        """See ``Store.release``."""
        self._recycled.release()

    def delete_tree(self, prefix: str) -> None:
        """See ``Store.delete_tree``. Symbolic links are removed, not followed."""
        if prefix and self._link_above(os.path.join(self._path(prefix), "")) is not None:
            return
        for name in self.list(prefix):
            path = os.path.join(self._path(prefix) if prefix else self.url, name)
            if os.path.isdir(path) and not os.path.islink(path):
                shutil.rmtree(path)
            else:
                os.unlink(path)
        if prefix:
            self.delete_empty(prefix)

    def delete_empty(self, prefix: str) -> None:
        """See ``Store.delete_empty``."""
        path = self._path(prefix)
        if self._link_above(path) is not None:
            return
        try:
            os.rmdir(path)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ENOTEMPTY, errno.EEXIST):
                raise

    def usage(self) -> tuple[int, int]:
        """Bytes that are free for this user, and all bytes, of the file system it lies in or will lie in.

        What is kept to be written over is free.

        Raises:
            OSError: the system does not say.
        """
        place = self.url
        while not os.path.isdir(place) and os.path.dirname(place) != place:
            place = os.path.dirname(place)
        found = shutil.disk_usage(place)
        return found.free + kept_bytes(os.stat(place).st_dev), found.total

    def _path(self, key: str) -> str:
        return os.path.join(self.url, validate_key(key).replace("/", os.sep))

    def _link_above(self, path: str) -> str | None:
        """A symbolic link among the folders between the root and ``path``: what is behind it belongs to its user."""
        folder = os.path.dirname(path)
        while len(folder) > len(self.url):
            if os.path.islink(folder):
                return folder
            folder = os.path.dirname(folder)
        return None

    def _make_parent(self, path: str) -> None:
        with explained(self.url, path):
            if (link := self._link_above(path)) is not None:
                raise OSError(errno.ELOOP, "nothing is written through a symbolic link", link)
            make_folder(os.path.dirname(path))

    @contextmanager
    def _temporary(self, path: str, size_bytes: int) -> Iterator[str]:
        """A temporary name beside ``path``; what is still there at the end, however it comes, is removed."""
        self._make_parent(path)
        temporary = _temporary_path(path)
        try:
            with explained(self.url, path, size_bytes):
                yield temporary
        finally:
            with suppress(OSError):  # retention removes it
                os.unlink(temporary)

    def _create_exclusively(self, path: str, data: bytes) -> bool:
        try:
            write_file(path, data)
        except FileExistsError:
            return False
        except BaseException:
            os.unlink(path)
            raise
        sync_folder(os.path.dirname(path))
        return True


def _finding_room(write: Callable[[], _T]) -> _T:
    """``write()``, and once more where a disk is full of what was kept to be written over."""
    try:
        return write()
    except OSError as error:
        if error.errno not in _FULL or not release_all():
            raise
    return write()


def _insisting(read: Callable[[], _T]) -> _T:
    """``read()``, and again where the disk may do better at the next try."""
    for _ in range(_READ_TRIES - 1):
        try:
            return read()
        except OSError as error:
            if error.errno not in _LOST:
                raise
            time.sleep(_READ_PAUSE_S)
    return read()


def _fill(fd: int, views: list[memoryview], path: str) -> None:
    start = 0
    while start < len(views):
        num_read = os.readv(fd, views[start : start + _MAX_VIEWS])
        if not num_read:
            raise EOFError(f"{path} ends {sum(view.nbytes for view in views[start:])} bytes early")
        while start < len(views) and num_read >= views[start].nbytes:
            num_read -= views[start].nbytes
            start += 1
        if num_read:
            views[start] = views[start][num_read:]


class _LocalFile(OpenFile):
    """Stays open between reads: what the kernel reads ahead, it reads ahead of one descriptor."""

    def __init__(self, store: Store, key: str, path: str) -> None:
        super().__init__(store, key)
        self._path = path
        self._file: FileIO | None = None

    def read_scattered(self, offset_bytes: int, views: Sequence[memoryview]) -> None:
        def once() -> None:
            if self._file is None:
                self._file = open(path, "rb", buffering=0)  # noqa: SIM115
            try:
                self._file.seek(offset_bytes)
                _fill(self._file.fileno(), [view for view in views if view.nbytes], path)
            except OSError:  # the next try may do better with another handle, on a mount over a network
                self._close()
                raise

        with _missing(self._path) as path:
            _insisting(once)

    def __exit__(self, *error: object) -> None:
        self._close()

    def _close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()


class _LocalSink(Sink):
    is_done_with_memory = True

    def __init__(self, root: str, path: str, size_bytes: int, recycled: Recycled) -> None:
        super().__init__(path, size_bytes)
        self._root, self._recycled = root, recycled
        self._temporary = _temporary_path(path)
        self._file = self._open()

    def _open(self) -> DirectFile:
        fd = self._recycled.take(os.path.basename(self._path), self._temporary, self._size_bytes)
        if fd is not None:
            return DirectFile(fd, is_direct=True)
        return DirectFile.create(self._temporary, self._size_bytes)

    def _write(self, offset_bytes: int, data: memoryview) -> None:
        with explained(self._root, self._path, self._size_bytes - offset_bytes):
            # not every file system takes the space beforehand
            _finding_room(lambda: self._file.write_at(offset_bytes, data))

    def _finish(self) -> None:
        with explained(self._root, self._path, self._size_bytes):
            self._file.sync()
            trace = trace_of(self._file.fd) if self._file.is_direct else None
            self._file.close()
            os.replace(self._temporary, self._path)
            sync_folder(os.path.dirname(self._path))
            self._recycled.wrote(self._path, trace)

    def _abort(self) -> None:
        with suppress(OSError):
            self._file.close()
        with suppress(OSError):
            os.unlink(self._temporary)


def write_file(path: str, data: BytesLike) -> None:
    """Write a file that must not exist, and sync it. A failure can leave a part of it.

    Raises:
        FileExistsError: ``path`` exists, as a link too.
        OSError: whatever else the system says.
    """
    view = byte_view(data)
    file = DirectFile.create(path, view.nbytes)
    try:
        with naming(path):
            file.write_at(0, view)
            file.sync()
    finally:
        file.close()


def _temporary_path(path: str) -> str:
    folder, name = os.path.split(path)
    return os.path.join(folder, temporary_name(name, secrets.token_hex(4)))


def _link(temporary: str, path: str) -> bool | None:
    """Give ``temporary`` its final name: False if that exists, None where there are no hard links."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        # NFS can answer so when the reply to a link that succeeded was lost; the link count knows (open(2)).
        return os.stat(temporary).st_nlink == 2
    except OSError as error:
        if error.errno in _NO_LINKS:
            return None
        raise
    return True


class _missing(explained_read):
    """A file where a folder should be, or the reverse, means that the key is missing, as on an object store."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> str:
        return self._path

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, NotADirectoryError | IsADirectoryError):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self._path) from None
        super().__exit__(kind, error, trace)
