"""A training loop of one thread, to see what goes on beside it."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

WIDTH = 256  # a product takes a fraction of a millisecond, as many small operations of a real step do
ALONE_S = 0.5
MIN_STEPS = 20


class Training:
    """Multiplies matrices; touches nothing of the state that is saved."""

    def __init__(self) -> None:
        self._weight = torch.rand(WIDTH, WIDTH)
        self._output = torch.empty(WIDTH, WIDTH)

    def rate(self, is_over: Callable[[], bool]) -> float:
        """Steps a second until ``is_over``."""
        num_threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            steps, start = 0, time.perf_counter()
            while steps < MIN_STEPS or not is_over():
                torch.mm(self._weight, self._weight, out=self._output)
                steps += 1
            return steps / (time.perf_counter() - start)
        finally:
            torch.set_num_threads(num_threads)

    def rate_alone(self) -> float:
        """Steps a second beside nothing."""
        end = time.perf_counter() + ALONE_S
        return self.rate(lambda: time.perf_counter() >= end)
