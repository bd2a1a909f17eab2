"""The background thread that brings staged images to the store: one save in flight."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError

__all__ = ["Writer"]


class Writer:
    """Runs one job at a time in a thread of its own; a failure waits until it is taken.

    The interpreter joins the thread at exit, so a save that is in flight when the script ends still commits.
    """

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="exact-resume-writer")
        self._future: Future[None] | None = None

    @property
    def busy(self) -> bool:
        """Whether a job is in flight."""
        return self._future is not None and not self._future.done()

    def submit(self, job: Callable[[], None]) -> None:
        """Start ``job``.

        Raises:
            RuntimeError: one is in flight, or the failure of the last one was not taken.
        """
        if self._future is not None:
            raise RuntimeError("a save is in flight, or its outcome was not taken")
        self._future = self._executor.submit(job)

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

    def close(self) -> None:
        """Wait for the job in flight and end the thread."""
        self._executor.shutdown(wait=True)
