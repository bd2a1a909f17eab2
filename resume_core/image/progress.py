"""How much of what is staged has arrived, for threads that read it while the rest is copied."""

from __future__ import annotations

from threading import Condition

__all__ = ["Progress"]


class Progress:
    """Bytes that are final, counted from the start of the arena; what comes after them may still change."""

    def __init__(self) -> None:
        self._condition = Condition()
        self._num_bytes = 0
        self._is_over = False
        self._problem: BaseException | None = None

    def advance(self, num_bytes: int) -> None:
        """The first ``num_bytes`` are final."""
        with self._condition:
            self._num_bytes = num_bytes
            self._condition.notify_all()

    def end(self, problem: BaseException | None = None) -> None:
        """All is final, or what has not arrived never will."""
        with self._condition:
            self._is_over, self._problem = True, problem
            self._condition.notify_all()

    def wait(self, num_bytes: int | None) -> None:
        """Return when the first ``num_bytes`` are final, with None when all are.

        Raises:
            RuntimeError: they never will be; the error of the thread that copied is chained.
        """
        with self._condition:
            self._condition.wait_for(lambda: self._is_over or self._has(num_bytes))
            if self._problem is not None and not self._has(num_bytes):
                raise RuntimeError(f"staging was broken off: {self._problem!r}") from self._problem

    def _has(self, num_bytes: int | None) -> bool:
        return num_bytes is not None and self._num_bytes >= num_bytes
