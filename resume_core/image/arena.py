"""Memory that images are staged in: page-aligned, faulted in before use, the same for every save.

A copy into memory that was never touched is several times slower than into warm memory, as the kernel hands out and
clears each page at its first write. The arena pays that once, in a thread of its own while training goes on, and there
it also has the driver of a GPU register the memory, when one is in use.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable
from threading import Thread

import torch

from resume_core.image.cuda import Pinned, is_in_use
from resume_core.image.quiet import plain_tensors

# of Linux's <asm-generic/mman-common.h>; mmap has no names for them
_WIPE_ON_FORK = 18  # MADV_WIPEONFORK, Linux 4.14
_POPULATE_WRITE = 23  # MADV_POPULATE_WRITE, Linux 5.14
_PIECE_BYTES = 32 << 20  # faulted in by one call: in between, the process can map memory for other purposes


class Arena:
    """One growing piece of anonymous memory.

    A forked child, such as a DataLoader worker, finds zeros in its place and nothing of the parent's.
    """

    def __init__(self) -> None:
        self._memory: mmap.mmap | None = None
        self._tensor = torch.empty(0, dtype=torch.uint8, device="cpu")
        self._pinned: Pinned | None = None
        self._filling: Thread | None = None

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

        Growing takes new memory and keeps nothing; views of the old one stay readable as long as they are held, but no
        GPU may be copying into it.

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
        retired, self._pinned = self._pinned, None
        self._memory, self._tensor = None, torch.empty(0, dtype=torch.uint8, device="cpu")  # give back before taking
        memory = _map(-(-size_bytes // mmap.PAGESIZE) * mmap.PAGESIZE)
        with plain_tensors():
            tensor = torch.frombuffer(memory, dtype=torch.uint8)
        self._memory, self._tensor = memory, tensor
        self._start(lambda: self._fill(memory, tensor, retired))
        return True

    def pin(self) -> None:
        """Register the memory with the driver of the GPUs in use, if that is not done yet."""
        self.wait()
        if self._pinned is None and self.size_bytes:
            self._start(lambda: self._pin(self._tensor))
            self.wait()

    @property
    def is_pinned(self) -> bool:
        """Whether a GPU copies into the memory by itself."""
        return self._pinned is not None and self._pinned.is_registered

    def wait(self) -> None:
        """Return when every page is in memory."""
        thread, self._filling = self._filling, None
        if thread is not None:
            thread.join()

    def _start(self, job: Callable[[], None]) -> None:
        self._filling = Thread(target=job, name="exact-resume-arena", daemon=True)
        self._filling.start()

    def _fill(self, memory: mmap.mmap, tensor: torch.Tensor, retired: Pinned | None) -> None:
        if retired is not None:
            retired.release()
        _populate(memory, tensor)
        if is_in_use():
            self._pin(tensor)

    def _pin(self, tensor: torch.Tensor) -> None:
        self._pinned = Pinned(tensor)

    def view(self, offset: int, nbytes: int) -> memoryview:
        """``nbytes`` from ``offset``, writable, without a copy.

        Raises:
            ValueError: outside of what is reserved.
        """
        if offset < 0 or nbytes < 0 or offset + nbytes > self.size_bytes:
            raise ValueError(f"bytes {offset} to {offset + nbytes} lie outside of the arena's {self.size_bytes}")
        return memoryview(self._memory or b"")[offset : offset + nbytes]


def _map(size_bytes: int) -> mmap.mmap:
    """Memory that the kernel gives huge pages to, and that a fork does not make fresh again.

    After a fork, private memory is copied page by page at its next write, in the middle of a save; unless children are
    to have it wiped, then they get no pages of it. Shared memory stays as it is too, but mostly has no huge pages, and
    the disk reads it more slowly page by page.
    """
    advise = _madvise()
    if advise is not None and hasattr(mmap, "MAP_ANONYMOUS"):
        memory = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if advise(ctypes.addressof(ctypes.c_char.from_buffer(memory)), size_bytes, _WIPE_ON_FORK) == 0:
            return memory
    return mmap.mmap(-1, size_bytes)


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
