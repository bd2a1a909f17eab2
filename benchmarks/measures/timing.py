"""Clocks."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any


def timed(work: Callable[[], object]) -> float:
    """Seconds that ``work`` takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def timed_in_turn(plain: Callable[[], object], ours: Callable[[], object], repeats: int) -> tuple[float, float]:
    """Seconds of ``2 * repeats`` calls of each, as plain, ours, ours, plain: a drift of the machine hits both alike."""
    plain_s = ours_s = 0.0
    for _ in range(repeats):
        plain_s += timed(plain)
        ours_s += timed(ours) + timed(ours)
        plain_s += timed(plain)
    return plain_s, ours_s


class Added:
    """What a wrapper adds to each call of a function: the time outside of it less the time inside.

    The clock inside costs a call of its own, so the result is a fraction of a microsecond too high.
    """

    def __init__(self) -> None:
        self.calls_s: list[float] = []
        self._inside_s = 0.0

    def inside(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """``function``, to be given to the wrapper."""

        @functools.wraps(function)  # the plugin checks signatures
        def clocked(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                self._inside_s = time.perf_counter() - start

        return clocked

    def outside(self, wrapper: Callable[..., Any]) -> Callable[..., Any]:
        """``wrapper``, to be called from now on."""

        def clocked(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            result = wrapper(*args, **kwargs)
            self.calls_s.append(time.perf_counter() - start - self._inside_s)
            return result

        return clocked
