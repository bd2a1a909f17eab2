"""What staging does otherwise with a GPU: memory that the driver knows, and copies that the host does not wait for.

CUDA is never initialised here; without tensors on a GPU none of this is used.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch


def is_in_use() -> bool:
    """Whether this process has initialised CUDA."""
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


class Pinned:
    """Memory registered with the driver, so that a GPU copies into it by itself (cudaHostRegister).

    To be made in a thread of its own: a refusal is the last error of the thread that met it, and torch would raise that
    at its next kernel.

    Args:
        memory: uint8, contiguous. Its pages should be there, else the driver faults them in one by one.
    """

    def __init__(self, memory: torch.Tensor) -> None:
        address = memory.data_ptr()
        # refused where memory may not be locked (RLIMIT_MEMLOCK, some containers): copies are slower then, not wrong
        self.is_registered = int(_runtime().cudaHostRegister(address, memory.numel(), 0)) == 0
        self._release = weakref.finalize(self, _unregister, address) if self.is_registered else None
        if self._release is not None:
            self._release.atexit = False  # the driver may be gone by then

    def release(self) -> None:
        """Make it ordinary memory again. No copy into it may be under way."""
        if self._release is not None:
            self._release()


def _unregister(address: int) -> None:
    _runtime().cudaHostUnregister(address)


def _runtime() -> Any:
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]


class Copies:
    """Copies of one save from GPUs to the host, on a stream of their own for each GPU.

    Whatever training enqueues after :meth:`start` waits for them on the GPU; the host goes on.
    """

    def __init__(self) -> None:
        self._streams: dict[torch.device, torch.cuda.Stream] = {}
        self._events: list[torch.cuda.Event] = []
        self._sources: list[torch.Tensor] = []

    def start(self, device: torch.device, targets: list[torch.Tensor], sources: list[torch.Tensor]) -> None:
        """Copy each of ``sources``, all on ``device``, to its target on the host, as they are on the current stream."""
        current = torch.cuda.current_stream(device)
        side = self._stream(device)
        side.wait_stream(current)
        with torch.cuda.stream(side):
            torch._foreach_copy_(targets, sources, non_blocking=True)
            copied = side.record_event()
        current.wait_event(copied)
        self._events.append(copied)
        self._sources += sources  # their memory must not be given to another tensor meanwhile

    def _stream(self, device: torch.device) -> torch.cuda.Stream:
        if device not in self._streams:
            self._streams[device] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        return self._streams[device]

    def wait(self) -> None:
        """Return when all that was started is in the host's memory. Any thread may call it."""
        for event in tuple(self._events):
            event.synchronize()
        self._events.clear()
        self._sources.clear()
