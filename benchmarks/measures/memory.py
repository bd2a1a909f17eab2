"""What a call holds at its peak, and what the page cache holds of a file."""

from __future__ import annotations

import ctypes
import gc
import mmap
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from measures import sampler

CACHED_PERCENT = 2  # of a file: below that it counts as gone from the cache
PIECE_BYTES = 64 << 20


def extra_bytes(call: Callable[[], object]) -> int:
    """Bytes that this process and its children hold more at the peak of ``call`` than before it.

    A process of its own looks, every few milliseconds: a thread would see nothing while a call keeps the interpreter.
    """
    gc.collect()
    with suppress(AttributeError):  # what malloc keeps of earlier calls would pass for nothing taken
        ctypes.CDLL(None).malloc_trim(0)
    command = [sys.executable, "-S", "-E", sampler.__file__, str(os.getpid())]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        before = int(process.stdout.readline())
        call()
        peak = int(process.communicate()[0])
    return max(peak - before, 0)


def files_of(path: Path) -> Iterator[Path]:
    """``path``, or the files below it."""
    yield from (path,) if path.is_file() else sorted(found for found in path.rglob("*") if found.is_file())


def sync_tree(path: Path) -> None:
    """Return when all files and names below ``path`` are on the disk. What is there already costs next to nothing."""
    for found in (path, *path.rglob("*")):
        fd = os.open(found, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def drop_cache(path: Path) -> bool:
    """Have the page cache forget the files below ``path``.

    Returns:
        Whether it did.
    """
    files = [found for found in files_of(path) if found.stat().st_size]
    for file in files:
        fd = os.open(file, os.O_RDONLY)
        try:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)
    pages = sum(-(-file.stat().st_size // mmap.PAGESIZE) for file in files)
    return sum(map(_num_cached_pages, files)) * 100 <= pages * CACHED_PERCENT


def fill_cache(path: Path) -> None:
    """Have the page cache hold the files below ``path``."""
    buffer = bytearray(PIECE_BYTES)
    for found in files_of(path):
        with open(found, "rb", buffering=0) as file:
            while file.readinto(buffer):
                pass


def _num_cached_pages(path: Path) -> int:
    size_bytes = path.stat().st_size
    call = ctypes.CDLL(None, use_errno=True).mincore
    call.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
    seen = ctypes.create_string_buffer(-(-size_bytes // mmap.PAGESIZE))
    # a private writable mapping, so that its address can be had; nothing is written
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) as mapped:
        first = ctypes.c_char.from_buffer(mapped)
        result = call(ctypes.addressof(first), size_bytes, seen)
        del first  # or the mapping could not be closed
    if result != 0:
        raise OSError(ctypes.get_errno(), "mincore failed", str(path))
    return sum(page & 1 for page in seen.raw)
