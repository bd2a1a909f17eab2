"""Memory that images are staged in: page-aligned, faulted in before use, the same for every save.

A copy into memory that was never touched is several times slower than into warm memory, as the kernel hands out and
clears each page at its first write. The arena pays that once, in a thread of its own while training goes on.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable
from threading import Thread

import torch

from resume_core.image.quiet import plain_tensors

_POPULATE_WRITE = 23  # MADV_POPULATE_WRITE of <asm-generic/mman-common.h>, Linux 5.14; mmap has no name for it
_PIECE_BYTES = 32 << 20  # faulted in by one call: in between, the process can map memory for other purposes


class Arena:
    """One growing piece of anonymous memory.

    It is mapped shared: after a fork, as DataLoader workers do, private memory is copied page by page at its next
    write, in the middle of a save. The children never look at it.
    """

    def __init__(self) -> None:
        self._memory: mmap.mmap | None = None
        self._tensor = torch.empty(0, dtype=torch.uint8, device="cpu")
        self._populating: Thread | None = None

    @property
    def size_bytes(self) -> int:
        """Bytes reserved, a multiple of the page size."""
        return self._tensor.numel()

    @property
    def tensor(self) -> torch.Tensor:
        """All of the memory, uint8 of shape ``(size_bytes,)``. Valid until :meth:`reserve` grows the arena."""
        return self._tensor

    def reserve(self, size_bytes: int) -> bool:
        """Have at least ``size_bytes``, to be used after :meth:`wait`: pages come in the background. Never shrinks.

        Growing takes new memory and keeps nothing; views of the old one stay readable as long as they are held.

        Returns:
            True when the arena grew.

        Raises:
            ValueError: ``size_bytes`` is negative.
            OSError: the system has no memory for it.
        """
        if size_bytes < 0:
            raise ValueError(f"size_bytes must not be negative, got {size_bytes}")
        if size_bytes <= self.size_bytes:
            return False
        self.wait()
        self._memory, self._tensor = None, torch.empty(0, dtype=torch.uint8, device="cpu")  # give back before taking
        memory = mmap.mmap(-1, -(-size_bytes // mmap.PAGESIZE) * mmap.PAGESIZE)
        with plain_tensors():
            tensor = torch.frombuffer(memory, dtype=torch.uint8)
        self._memory, self._tensor = memory, tensor
        self._populating = Thread(target=_populate, args=(memory, tensor), name="exact-resume-arena", daemon=True)
        self._populating.start()
        return True

    def wait(self) -> None:
        """Return when every page is in memory."""
        thread, self._populating = self._populating, None
        if thread is not None:
            thread.join()

    def view(self, offset: int, nbytes: int) -> memoryview:
        """``nbytes`` from ``offset``, writable, without a copy.

        Raises:
            ValueError: outside of what is reserved.
        """
        if offset < 0 or nbytes < 0 or offset + nbytes > self.size_bytes:
            raise ValueError(f"bytes {offset} to {offset + nbytes} lie outside of the arena's {self.size_bytes}")
        return memoryview(self._memory or b"")[offset : offset + nbytes]


def _populate(memory: mmap.mmap, tensor: torch.Tensor) -> None:
    """Have the kernel hand out every page now, in huge ones where it does that on request."""
    advise = _madvise()
    address = tensor.data_ptr()
    if advise is not None and hasattr(mmap, "MADV_HUGEPAGE"):
        advise(address, len(memory), mmap.MADV_HUGEPAGE)  # best effort
    with plain_tensors():
        for start in range(0, len(memory), _PIECE_BYTES):
            nbytes = min(_PIECE_BYTES, len(memory) - start)
            if advise is None or advise(address + start, nbytes, _POPULATE_WRITE) != 0:  # not Linux, or an older one
                tensor[start : start + nbytes : mmap.PAGESIZE].zero_()


def _madvise() -> Callable[[int, int, int], int] | None:
    """madvise(2) by a call that lets other threads run; that of ``mmap`` keeps the interpreter to itself."""
    try:
        call = ctypes.CDLL(None).madvise
    except (AttributeError, OSError, TypeError):  # no such call, as on Windows
        return None
    call.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    found: Callable[[int, int, int], int] = call
    return found
