"""Signals that announce the end of the machine, noted and nothing else.

A handler runs between two instructions of the training, at any place, so it only takes a note, which is looked at
where the run can be saved: at the next boundary. Only where that is too far off, and all is saved, it ends the process.
What was installed before is called as well, and put back at the end.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

from resume_core.capture.workers import SPARED

__all__ = ["SignalWatch"]


class SignalWatch:
    """Takes note of signals between `start` and `stop`.

    Args:
        names: as in ``signal``, for example ``("SIGTERM",)``.
        log: where it is said which signals cannot be watched.
    """

    def __init__(self, names: Sequence[str], log: logging.Logger) -> None:
        self._names, self._log = tuple(names), log
        self._before: dict[int, Any] = {}
        self._spared: str | None = None
        self._pid = 0
        self.at_once: BaseException | None = None
        """What a signal raises where it comes; None while it is only noted."""
        self.has_raised = False
        """Whether it was raised."""
        self.received: str | None = None
        """Name of the first signal that has come, None before."""
        self.received_s = 0.0
        """When that was, by ``time.monotonic``."""

    @property
    def is_watching(self) -> bool:
        """Whether a signal would be noted."""
        return bool(self._before)

    def start(self) -> None:
        """Install the handlers; in the main thread, as Python has signals handled there alone."""
        if not self._names or self.is_watching:
            return
        if threading.current_thread() is not threading.main_thread():
            self._log.warning(
                "%s will end this process without a save: signals can be watched from the main thread alone, and "
                "training was started in another one",
                " or ".join(self._names),
            )
            return
        self._pid = os.getpid()
        for name in self._names:
            number = getattr(signal, name)
            before = signal.getsignal(number)
            if before is None:
                self._log.warning("%s is not watched: a handler that is not Python's is there already", name)
                continue
            self._before[number] = before
            signal.signal(number, self._note)
        # DataLoader workers, however they are started, outlive what is sent to all processes of the machine
        self._spared = os.environ.get(SPARED)
        os.environ[SPARED] = ",".join(self._names)

    def stop(self) -> None:
        """Put back what was there; a handler that somebody has installed meanwhile stays."""
        if not self._before or threading.current_thread() is not threading.main_thread():
            return
        for number, before in self._before.items():
            if signal.getsignal(number) == self._note:
                signal.signal(number, before)
        self._before = {}
        if self._spared is None:
            os.environ.pop(SPARED, None)
        else:
            os.environ[SPARED] = self._spared

    def _note(self, number: int, frame: FrameType | None) -> None:
        before = self._before.get(number, signal.SIG_DFL)
        if os.getpid() != self._pid:  # a process that the training has forked: nothing of ours is its business
            signal.signal(number, before)
            os.kill(os.getpid(), number)
            return
        if self.received is None:
            self.received, self.received_s = signal.Signals(number).name, time.monotonic()
        if callable(before) and before is not signal.default_int_handler:
            handler: Callable[[int, FrameType | None], Any] = before
            handler(number, frame)
        self.raise_at_once()

    def raise_at_once(self) -> None:
        """Raise ``at_once``, if there is any."""
        if self.at_once is not None:
            self.has_raised = True
            raise self.at_once
