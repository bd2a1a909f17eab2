"""The background thread that brings staged images to the store: one save in flight."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from threading import Thread

__all__ = ["Writer"]

_NICE = 10


class Writer:
    """Runs one job at a time beside training; its outcome waits until it is taken.

    Each job has a thread of its own: between saves there is none, so DataLoader workers fork off a process without
    ours. The interpreter joins it at exit, so a save that is in flight when the script ends still commits.
    """

    def __init__(self) -> None:
        self._future: Future[None] | None = None

    @property
    def busy(self) -> bool:
        """Whether a job is in flight or the outcome of the last one was not taken: nothing can be submitted."""
        return self._future is not None

    @property
    def has_ended(self) -> bool:
        """Whether a job has ended and its outcome was not taken."""
        return self._future is not None and self._future.done()

    def submit(self, job: Callable[[], None]) -> None:
        """Start ``job``.

        Raises:
            RuntimeError: one is in flight, or the outcome of the last one was not taken.
        """
        if self._future is not None:
            raise RuntimeError("a save is in flight, or its outcome was not taken")
        self._future = Future()
        Thread(target=_run, args=(job, self._future), name="exact-resume-writer").start()

    def take_outcome(self) -> tuple[bool, BaseException | None]:
        """Whether a job has ended since the last call, and with what error."""
        if self._future is None or not self._future.done():
            return False, None
        future, self._future = self._future, None
        return True, future.exception()

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait until nothing is in flight; the outcome stays to be taken.

        Raises:
            TimeoutError: the job was still running after ``timeout_s`` seconds.
        """
        if self._future is None:
            return
        try:
            self._future.exception(timeout_s)
        except FutureTimeoutError as error:
            raise TimeoutError(f"a save was still being written after {timeout_s} s") from error


def _run(job: Callable[[], None], future: Future[None]) -> None:
    _give_way()
    try:
        job()
    except BaseException as error:  # handed to the training thread with its traceback, whatever it is
        future.set_exception(error)
    else:
        future.set_result(None)


def _give_way() -> None:
    """Let training have the processor first. On Linux alone a priority can be that of one thread (setpriority(2))."""
    if sys.platform == "linux":
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
