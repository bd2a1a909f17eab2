"""The least that saving and restoring can take: a copy into warm memory, a bare write, a bare read."""

from __future__ import annotations

import mmap
import os
import statistics
from contextlib import suppress
from pathlib import Path

import torch

from measures.memory import drop_cache, fill_cache, sync_tree
from measures.states import Live
from measures.timing import timed

ALIGNMENT = 64  # bytes, of a tensor in the memory
PIECE_BYTES = 64 << 20
COPIES = 3  # a round: one is short, and any of them may be disturbed


class Yardsticks:
    """One piece of memory, faulted in, and one file of the same number of bytes.

    Args:
        live: what is copied.
        folder: where the file goes.
    """

    def __init__(self, live: Live, folder: Path) -> None:
        self.live = live
        self._path = folder / "bare"
        sizes = [-(-tensor.nbytes // ALIGNMENT) * ALIGNMENT for tensor in live.tensors().values()]
        # private and in huge pages, where the kernel gives them: the fastest to copy into
        size_bytes = -(-sum(sizes) // mmap.PAGESIZE) * mmap.PAGESIZE
        self._memory = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with suppress(OSError):
            self._memory.madvise(mmap.MADV_HUGEPAGE)
        self._all = torch.frombuffer(self._memory, dtype=torch.uint8)
        self._all.fill_(1)
        self._targets, offset = [], 0
        for size, tensor in zip(sizes, live.tensors().values(), strict=True):
            raw = self._all[offset : offset + tensor.nbytes]
            self._targets.append(raw.view(tensor.dtype).view(tensor.shape))
            offset += size

    def copy(self) -> dict[str, float]:
        """Seconds that `torch._foreach_copy_` takes."""
        sources = list(self.live.tensors().values())
        with torch.no_grad():
            times_s = [timed(lambda: torch._foreach_copy_(self._targets, sources)) for _ in range(COPIES)]
        return {"blocks": statistics.median(times_s)}

    def write(self) -> dict[str, float]:
        """Seconds that a new file takes until it is on the disk, written past the page cache.

        Raises:
            OSError: the file system does not take O_DIRECT.
        """
        self._path.unlink(missing_ok=True)
        return {"durable": timed(self._write)}

    def _write(self) -> None:
        fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_DIRECT)
        view = memoryview(self._memory)
        try:
            offset = 0
            while offset < len(view):
                offset += os.pwrite(fd, view[offset : offset + PIECE_BYTES], offset)
            os.fsync(fd)
        finally:
            os.close(fd)
        sync_tree(self._path.parent)

    def read_cold(self, num_fresh_bytes: int = 0) -> dict[str, float]:
        """Seconds from the disk, and no memory but that which is read into; nothing where the cache keeps the file.

        Args:
            num_fresh_bytes: read into memory that nobody has used; the rest, into that which is faulted in.
        """
        self._fill()  # what lies behind the disk is to have it
        views = self._views(num_fresh_bytes)
        return {"cold": timed(lambda: self._read(views))} if drop_cache(self._path) else {}

    def read_warm(self, num_fresh_bytes: int = 0) -> dict[str, float]:
        """The same from the page cache."""
        self._fill()
        views = self._views(num_fresh_bytes)
        return {"warm": timed(lambda: self._read(views))}

    def _views(self, num_fresh_bytes: int) -> list[memoryview]:
        faulted_in = memoryview(self._memory)
        if not num_fresh_bytes:
            return [faulted_in]
        # as malloc takes it for a large tensor
        fresh = mmap.mmap(-1, num_fresh_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        return [faulted_in[:-num_fresh_bytes], memoryview(fresh)]

    def _fill(self) -> None:
        if not self._path.exists():
            self._path.write_bytes(self._memory)
            sync_tree(self._path.parent)
        fill_cache(self._path)

    def _read(self, views: list[memoryview]) -> None:
        with open(self._path, "rb", buffering=0) as file:
            for view in views:
                offset = 0
                while offset < len(view):
                    offset += file.readinto(view[offset : offset + PIECE_BYTES]) or 0
