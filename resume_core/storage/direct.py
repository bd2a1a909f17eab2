"""Large files past the page cache, where the system and the file system take that.

Buffered writes of a checkpoint go through the page cache: they push out what training reads from there, and fsync then
waits for all of it at once. O_DIRECT moves pages of the arena straight to the disk. Whether it can be had is found out
by trying, file by file: some systems lack the flag, some file systems refuse it at open (tmpfs before Linux 6.5), some
at the first write; those files are written the ordinary way.
"""

from __future__ import annotations

import ctypes
import errno
import os
import sys

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

__all__ = ["DirectFile"]

_ALIGNMENT = 4096  # bytes, of memory, offset and length: the block of every disk in use
_MIN_BYTES = 1 << 20  # below that the page cache is no burden
_PIECE_BYTES = 64 << 20  # of one system call; the kernel takes no more than 2 GiB in any case
_O_DIRECT = getattr(os, "O_DIRECT", 0)
_REFUSED = frozenset({errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP})
# macOS has no O_DIRECT; this keeps what is written out of its cache as well
_F_NOCACHE = getattr(fcntl, "F_NOCACHE", None)


class DirectFile:
    """A file that is written by position, all of it.

    Args:
        fd: its descriptor, which is closed by `close`.
        is_direct: whether that was opened with O_DIRECT.

    Attributes:
        fd: the descriptor.
        is_direct: whether writes go past the page cache, as far as is known by now.
    """

    def __init__(self, fd: int, *, is_direct: bool) -> None:
        self.fd = fd
        self.is_direct = is_direct

    @classmethod
    def create(cls, path: str, size_bytes: int) -> DirectFile:
        """A file that does not exist yet.

        Args:
            path: must not exist, as a link neither.
            size_bytes: how large it will be; disk space for it is taken now where the file system can.

        Raises:
            FileExistsError: ``path`` exists.
            OSError: no space for it, or whatever else the system says. Nothing is left.
        """
        file = cls._open(path, size_bytes)
        try:
            _allocate(file.fd, size_bytes)
        except BaseException:
            file.close()
            os.unlink(path)
            raise
        return file

    @classmethod
    def _open(cls, path: str, size_bytes: int) -> DirectFile:
        # 0o666: the umask decides, as for any file that a user's program writes. O_EXCL refuses links as well.
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        if _O_DIRECT and size_bytes >= _MIN_BYTES:
            try:
                return cls(os.open(path, flags | _O_DIRECT, 0o666), is_direct=True)
            except OSError as error:
                if error.errno not in _REFUSED:
                    raise
                if os.path.lexists(path):  # some make the file before they refuse
                    os.unlink(path)
        fd = os.open(path, flags, 0o666)
        if _F_NOCACHE is not None and size_bytes >= _MIN_BYTES:
            fcntl.fcntl(fd, _F_NOCACHE, 1)
        return cls(fd, is_direct=False)

    def write_at(self, offset_bytes: int, data: memoryview) -> None:
        """Write all of ``data``. Pages of an aligned buffer go past the cache, an odd end and anything else does not.

        Raises:
            OSError: the system refused.
        """
        num_direct = self._num_direct(offset_bytes, data)
        if num_direct:
            self._write(offset_bytes, data[:num_direct])
        if num_direct < data.nbytes:
            self._set_direct(False)
            self._write(offset_bytes + num_direct, data[num_direct:])
            self._set_direct(True)

    def _num_direct(self, offset_bytes: int, data: memoryview) -> int:
        if not self.is_direct or offset_bytes % _ALIGNMENT or data.nbytes < _ALIGNMENT or data.readonly:
            return 0
        address = ctypes.addressof(ctypes.c_char.from_buffer(data))
        return 0 if address % _ALIGNMENT else data.nbytes - data.nbytes % _ALIGNMENT

    def _write(self, offset_bytes: int, data: memoryview) -> None:
        while data.nbytes:
            try:
                num_written = os.pwrite(self.fd, data[:_PIECE_BYTES], offset_bytes)
            except OSError as error:
                if not self.is_direct or error.errno not in _REFUSED:
                    raise
                self._set_direct(False)  # a file system that takes the flag and not the write
                self.is_direct = False
                continue
            offset_bytes += num_written
            data = data[num_written:]

    def _set_direct(self, wanted: bool) -> None:
        if self.is_direct:
            flags = fcntl.fcntl(self.fd, fcntl.F_GETFL)
            fcntl.fcntl(self.fd, fcntl.F_SETFL, flags | _O_DIRECT if wanted else flags & ~_O_DIRECT)

    def sync(self) -> None:
        """Return when every byte and the size are on the disk.

        Raises:
            OSError: they are not.
        """
        os.fsync(self.fd)

    def close(self) -> None:
        """Close the descriptor; twice does no harm."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)


def _allocate(fd: int, size_bytes: int) -> None:
    """Take the space now, so that a disk too small is noticed before it is full. Where that cannot be had, do nothing.

    Not ``os.posix_fallocate``: where the file system cannot do it, that writes into every block instead.
    """
    if sys.platform != "linux" or size_bytes < _MIN_BYTES:
        return
    call = ctypes.CDLL(None, use_errno=True).fallocate
    call.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    if call(fd, 0, 0, size_bytes) == 0:
        return
    code = ctypes.get_errno()
    if code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        raise OSError(code, os.strerror(code))
