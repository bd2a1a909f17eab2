"""Losses and gradients, watched all along: what is not finite, and what jumps out of its recent range.

The range is a robust statistic of the last 128 steps: the median, the median absolute deviation (MAD), and the largest
value. A value is out of it above ``median + max(15 * 1.4826 * MAD, 3 * (largest - median))``; 1.4826 makes the MAD that
of a normal distribution (Rousseeuw and Croux, "Alternatives to the median absolute deviation", JASA 88, 1993). Losses
of single batches have heavy tails, so one value is no jump: three in a row are, or one among the first steps behind a
resume. The statistic is part of each checkpoint.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from statistics import median
from typing import Any

import numpy as np

from resume_core.evidence.prints import numbers_of, to_text

__all__ = ["Series", "going_back"]

_LENGTH = 128
_FEWEST = 20  # values that make a range
_IN_A_ROW = 3
_LEARN_EVERY = 32
_SIGMAS, _RANGES = 15.0, 3.0


class Series:
    """One number of each step, and its range.

    Args:
        name: for messages.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._values: deque[float] = deque(maxlen=_LENGTH)
        self._limit = math.inf
        self._num_since = self._num_above = 0
        self._is_told = False

    def add(self, value: float, step: int, *, is_strict: bool = False) -> str | None:
        """Take the next value.

        Args:
            value: of the step.
            step: for the message.
            is_strict: one value out of range is enough.

        Returns:
            What is wrong with it, once as long as it stays wrong.
        """
        if -math.inf < value < math.inf and value <= self._limit:
            self._num_above, self._is_told = 0, False
            self._learn(value)
            return None
        limit, self._num_above = self._limit, self._num_above + 1
        is_finite = math.isfinite(value)
        if is_finite:
            self._learn(value)
        if self._is_told or (is_finite and self._num_above < (1 if is_strict else _IN_A_ROW)):
            return None
        self._is_told = True
        if not is_finite:
            return f"{self.name} is {value} at step {step}"
        return (
            f"{self.name} jumped to {value:.6g} at step {step}: over the last {len(self._values)} steps its median is "
            f"{median(self._values):.6g}, and {limit:.6g} would have been the most to expect"
        )

    def _learn(self, value: float) -> None:
        self._values.append(value)
        self._num_since += 1
        if self._num_since >= _LEARN_EVERY:
            self._num_since = 0
            self._limit = self._found_limit()

    def _found_limit(self) -> float:
        if len(self._values) < _FEWEST:
            return math.inf
        middle = median(self._values)
        sigma = 1.4826 * median(abs(value - middle) for value in self._values)
        reach = max(_SIGMAS * sigma, _RANGES * (max(self._values) - middle))
        return middle + reach if reach > 0 else math.inf

    def state(self) -> str:
        """The last values, as text."""
        return to_text(np.asarray(self._values))

    def restore(self, text: Any) -> None:
        """Go on behind `state`; what cannot be read is passed over, as a range is found anew soon."""
        try:
            values: Iterable[float] = map(float, numbers_of(str(text)))
        except ValueError:
            return
        self._values = deque((value for value in values if math.isfinite(value)), maxlen=_LENGTH)
        self._limit = self._found_limit()


def going_back(url: str) -> str:
    """What can be done about a loss that is out of bounds: sentences for a message.

    Args:
        url: of the run's directory.
    """
    return (
        "A restart goes on from the newest checkpoint, bit for bit, and meets the same again: change what causes it "
        "(the sample, clipping, precision); and where a checkpoint was saved behind it, go back before it, by one "
        f'start with EXACT_RESUME="step N" in the environment (`exact-resume ls {url}` lists them). '
        "Another learning rate is not applied to a run that goes on: for that, begin another run in another "
        f"directory, from the weights of `exact-resume export {url} N weights.safetensors --format safetensors`."
    )
