"""DataLoader workers that outlive a signal to all processes of a machine, until the training that feeds on them leaves.

Stock workers die of it, and the training process with them before it can be saved. torch itself ends a worker by a
message, or by SIGTERM when its iterator is shut down or the training process exits; both say so in an event first.

Internals used (torch 2.4 to 2.13, torchdata 0.11): the variable ``done_event`` of ``_worker_loop``, and
``_workers_done_event`` of the iterator. Without them workers die as stock ones do.
"""

from __future__ import annotations

import multiprocessing.util
import os
import signal
import sys
import threading
import weakref
from contextlib import suppress
from types import FrameType
from typing import Any

__all__ = ["SPARED", "outlive_signals", "release_at_exit"]

SPARED = "EXACT_RESUME_SPARED_SIGNALS"
"""Environment variable with the names of the signals, which workers inherit."""

_EARLY = 100
_releases_in = 0
_iterators: weakref.WeakSet[Any] = weakref.WeakSet()


def outlive_signals() -> None:
    """In a worker, on its main thread: ignore the signals that the training process watches, while it feeds on us."""
    names = [name for name in os.environ.get(SPARED, "").split(",") if name]
    done = _done_event()
    if not names or done is None:
        return
    parent = os.getppid()

    def look() -> None:
        if done.is_set() or os.getppid() != parent:
            os._exit(0)

    def handle(number: int, frame: FrameType | None) -> None:
        # in a thread: the main one may hold the lock of the event at this moment
        threading.Thread(target=look, daemon=True).start()

    for name in names:
        with suppress(ValueError, AttributeError):  # another thread than the main one
            signal.signal(getattr(signal, name), handle)


def release_at_exit(iterator: Any) -> None:
    """Let the workers of an iterator go when this process exits; it may be in use until then."""
    global _releases_in
    if not hasattr(iterator, "_workers_done_event"):
        return
    _iterators.add(iterator)
    if _releases_in != os.getpid():
        _releases_in = os.getpid()
        # not atexit: a process that multiprocessing has started runs these alone, before it terminates its workers
        multiprocessing.util.Finalize(None, _release, exitpriority=_EARLY)


def _release() -> None:
    for iterator in _iterators:
        iterator._workers_done_event.set()


def _done_event() -> Any:
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_code.co_name != "_worker_loop":
        frame = frame.f_back
    return None if frame is None else frame.f_locals.get("done_event")
