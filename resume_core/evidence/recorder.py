"""What a rank records behind each save, for the attempt that goes on from it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from resume_core.evidence.record import Record
from resume_core.state import Progress

__all__ = ["Recorder", "records_of"]

_MAX_BATCHES = 64  # of one save: accumulation windows may be long
_MAX_SAVES = 8  # whose records are kept; the newest are those that a run goes on from
_MAX_BYTES = 8 << 20  # of the records of all of them, about
_LAST_WORD_S = 5.0  # that the end of a run waits for its last write


@dataclass
class _Window:
    """The records behind one save.

    Attributes:
        name: of its folder.
        end: the optimizer step behind which nothing more is recorded.
    """

    name: str
    end: int
    records: list[Record] = field(default_factory=list)

    @property
    def is_over(self) -> bool:
        """Whether it has what it is to have."""
        return bool(self.records) and (self.records[-1].step >= self.end or len(self.records) >= _MAX_BATCHES)


class Recorder:
    """That of one attempt, on one rank.

    Args:
        num_steps: optimizer steps to record behind each save.
        log: where it is said that something could not be written.
    """

    def __init__(self, num_steps: int, log: logging.Logger) -> None:
        self._num_steps, self._log = num_steps, log
        self._open: list[_Window] = []
        self._kept: list[dict[str, Any]] = []
        self._put: Callable[[list[Any]], None] | None = None
        self._lock = threading.Lock()
        self._wanted: list[Any] | None = None
        self._writing: threading.Thread | None = None

    def open(self, put: Callable[[list[Any]], None]) -> None:
        """Write with ``put`` from now on."""
        self._put = put

    @property
    def is_open(self) -> bool:
        """Whether the next batch is to be recorded."""
        return bool(self._open)

    def ends_with(self, step: int) -> bool:
        """Whether that is the last step of a save's."""
        return any(window.end == step for window in self._open)

    def saved(self, name: str, progress: Progress) -> None:
        """A save was taken."""
        if self._num_steps and self._put is not None:
            self._open = [*self._open, _Window(name, progress.step + self._num_steps)]

    def add(self, record: Record) -> None:
        """A batch was trained on."""
        for window in self._open:
            window.records.append(record)
        ended = [window for window in self._open if window.is_over]
        if ended:
            self._open = [window for window in self._open if not window.is_over]
            self._keep(ended)

    def close(self) -> None:
        """The run is over: what there is of the last saves is written as well, and waited for, a little."""
        left = [window for window in self._open if window.records]
        self._open = []
        if left:
            self._keep(left)
        writing = self._writing
        if writing is not None:
            writing.join(_LAST_WORD_S)

    def _keep(self, windows: list[_Window]) -> None:
        records = [{"checkpoint": w.name, "records": [record.as_dict() for record in w.records]} for w in windows]
        self._kept = [*self._kept, *records][-_MAX_SAVES:]
        while len(self._kept) > 1 and sum(map(_size_bytes, self._kept)) > _MAX_BYTES:
            self._kept = self._kept[1:]
        with self._lock:
            self._wanted = self._kept
            if self._writing is not None:
                return  # it looks once more before it ends
            self._writing = threading.Thread(target=self._write, name="exact-resume-evidence", daemon=True)
        try:
            self._writing.start()
        except RuntimeError:  # the interpreter is about to end
            self._writing = None

    def _write(self) -> None:
        """In a thread of its own: a slow store costs a report, no training."""
        while (saves := self._next()) is not None:
            try:
                assert self._put is not None
                self._put(saves)
            except Exception as error:  # of whatever kind: the run goes on without
                self._log.debug("what was recorded behind saves was not written: %s", error)

    def _next(self) -> list[Any] | None:
        with self._lock:
            saves, self._wanted = self._wanted, None
            if saves is None:
                self._writing = None
            return saves


def _size_bytes(kept: Mapping[str, Any]) -> int:
    sizes = [record["sizes"] for record in kept["records"] if record["sizes"] is not None]
    return sum(len(text) for one in sizes for text in one.values())


def records_of(saves: list[Any], name: str) -> list[Record]:
    """What was recorded behind the save of that name; empty when nothing was.

    Raises:
        TypeError: the file says something impossible.
        ValueError: likewise.
        KeyError: likewise.
    """
    found = next((one for one in reversed(saves) if one["checkpoint"] == name), None)
    return [] if found is None else [Record.from_dict(record) for record in found["records"]]
