"""Files that are written to a remote store as they come, without a copy of the whole."""

from __future__ import annotations

from abc import abstractmethod

from resume_core.storage.interface import Sink

__all__ = ["OrderedSink"]


class OrderedSink(Sink):
    """Hands on what is written in the order of the file; what comes early waits, in the caller's memory."""

    def __init__(self, path: str, size_bytes: int) -> None:
        super().__init__(path, size_bytes)
        self._early: dict[int, memoryview] = {}
        self._position_bytes = 0

    def _write(self, offset_bytes: int, data: memoryview) -> None:
        if not data.nbytes:
            return
        self._early[offset_bytes] = data
        while (piece := self._early.pop(self._position_bytes, None)) is not None:
            self._position_bytes += piece.nbytes
            self._append(piece)

    @abstractmethod
    def _append(self, piece: memoryview) -> None:
        """Take the next bytes of the file; their memory stays as it is until the sink is closed."""
