"""Clocks."""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

_T = TypeVar("_T")
_CLOCKED = 1000  # calls that clocks are measured with


def timed(work: Callable[[], object]) -> float:
    """Seconds that ``work`` takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def in_turn(plain: Callable[[], float], ours: Callable[[], float], repeats: int) -> tuple[float, float]:
    """Sums of ``2 * repeats`` results of each, as plain, ours, ours, plain: a drift of the machine hits both alike."""
    sum_plain = sum_ours = 0.0
    for _ in range(repeats):
        sum_plain += plain()
        sum_ours += ours() + ours()
        sum_plain += plain()
    return sum_plain, sum_ours


def run_rotated(runs: Mapping[str, Callable[[], _T]], number: int) -> dict[str, _T]:
    """The result of each, in an order that starts one further in every round ``number``."""
    names = list(runs)
    shift = number % len(names)
    return {name: runs[name]() for name in names[shift:] + names[:shift]}


class Added:
    """What a wrapper adds to each call of a function: the time outside of it less the time inside.

    The clocks themselves are part of each difference, about a microsecond of it; `mean_s` takes that off again.

    Args:
        clock: `time.perf_counter` where the wrapper may wait, `time.thread_time` where it only computes.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.calls_s: list[float] = []
        self._inside_s = 0.0

    def mean_s(self, skip: int) -> float:
        """Of the calls after the first ``skip``, less what the clocks cost around a function that does nothing."""
        alone = Added(self._clock)
        nothing = alone.outside(alone.inside(lambda: None))
        for _ in range(_CLOCKED):
            nothing()
        return statistics.fmean(self.calls_s[skip:]) - statistics.median(alone.calls_s)

    def inside(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """``function``, to be given to the wrapper."""

        @functools.wraps(function)  # the plugin checks signatures
        def clocked(*args: Any, **kwargs: Any) -> Any:
            start = self._clock()
            try:
                return function(*args, **kwargs)
            finally:
                self._inside_s = self._clock() - start

        return clocked

    def outside(self, wrapper: Callable[..., Any]) -> Callable[..., Any]:
        """``wrapper``, to be called from now on."""

        def clocked(*args: Any, **kwargs: Any) -> Any:
            start = self._clock()
            result = wrapper(*args, **kwargs)
            self.calls_s.append(self._clock() - start - self._inside_s)
            return result

        return clocked
