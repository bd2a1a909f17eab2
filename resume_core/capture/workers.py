"""DataLoader workers that outlive a signal to all processes of a machine, until the training that feeds on them leaves.

Stock workers die of it, and the training process with them before it can be saved. torch itself ends a worker by a
message, or by SIGTERM when its iterator is shut down or the training process exits; both say so in an event first.

Internals used (torch 2.6 to 2.13, torchdata 0.11): the variable ``done_event`` of ``_worker_loop``, and
``_workers_done_event`` of the iterator, which it has before it starts them. Without them workers die as stock ones do.
``worker_init_fn`` is another one while workers are started, and the user's own again.
"""

from __future__ import annotations

import multiprocessing.util
import os
import signal
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

__all__ = ["SPARED", "release_at_exit", "release_half_made", "spared"]

SPARED = "EXACT_RESUME_SPARED_SIGNALS"
"""Environment variable with the names of the signals, which workers inherit."""

_EARLY = 100
_releases_in = 0
_iterators: weakref.WeakSet[Any] = weakref.WeakSet()


@contextmanager
def spared(attributes: dict[str, Any]) -> Iterator[None]:
    """A block that starts workers: they are deaf to the signals until they know which of them to answer.

    Args:
        attributes: of the loader, whose ``worker_init_fn`` is another one in the block.
    """
    numbers = _spared_signals()
    if not numbers:
        yield
        return
    plain = attributes["worker_init_fn"]
    attributes["worker_init_fn"] = _Sparing(plain)
    # a process inherits what is blocked in the thread that starts it
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        attributes["worker_init_fn"] = plain
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Sparing:
    """A ``worker_init_fn`` that lets its worker outlive signals, and then does what the user's does."""

    def __init__(self, plain: Callable[[int], Any] | None) -> None:
        self.plain = plain

    def __call__(self, worker_id: int) -> None:
        _outlive_signals()
        if self.plain is not None:
            self.plain(worker_id)


def _spared_signals() -> list[signal.Signals]:
    names = os.environ.get(SPARED, "").split(",") if hasattr(signal, "pthread_sigmask") else ()
    return [signal.Signals[name] for name in names if name in signal.Signals.__members__]


def _outlive_signals() -> None:
    """In a worker, on its main thread: ignore the signals that the training process watches, while it feeds on us."""
    numbers, done, parent = _spared_signals(), _done_event(), os.getppid()

    def look() -> None:
        if done.is_set() or os.getppid() != parent:
            os._exit(0)

    def handle(number: int, frame: FrameType | None) -> None:
        # in a thread: the main one may hold the lock of the event at this moment
        threading.Thread(target=look, daemon=True).start()

    for number in numbers if done is not None else ():
        signal.signal(number, handle)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)


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


def release_half_made(error: BaseException) -> None:
    """Let workers go that an iterator has started whose making then failed: nobody has it who could shut it down.

    Args:
        error: as it came out of the making, with its traceback.
    """
    trace = error.__traceback__
    while trace is not None:
        frame, trace = trace.tb_frame, trace.tb_next
        if frame.f_code.co_name == "__init__":
            done = getattr(frame.f_locals.get("self"), "__dict__", {}).get("_workers_done_event")
            if done is not None:
                done.set()


def _release() -> None:
    for iterator in _iterators:
        iterator._workers_done_event.set()


def _done_event() -> Any:
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_code.co_name != "_worker_loop":
        frame = frame.f_back
    return None if frame is None else frame.f_locals.get("done_event")
