"""When a save is due."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from resume_core.policy import SaveEvery
from resume_core.state import Progress

__all__ = ["RETRY_S", "Schedule"]

RETRY_S = 30.0
"""After a failed save, seconds until the next try; a disk that is full for a moment must not use up all tries."""


class Schedule:
    """Decides from steps and the clock whether a boundary should save.

    Steps count from the start of the run, not from the last save: every attempt saves at the same steps.

    Args:
        save: the user's policy.
        clock: monotonic seconds.
    """

    def __init__(self, save: SaveEvery, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._save = save
        self._clock = clock
        self._last_step = 0
        self._last_s = clock()
        self._retry_at_s = math.inf

    def failed(self, num_in_a_row: int) -> None:
        """A save failed: try again in a while, longer after each failure, unless one is due before."""
        self._retry_at_s = self._clock() + RETRY_S * num_in_a_row

    def restart(self, progress: Progress) -> None:
        """A save was taken, or the run went on, at ``progress``: count from here."""
        self._last_step = progress.step
        self._last_s = self._clock()
        self._retry_at_s = math.inf

    def due(self, progress: Progress) -> bool:
        """Whether a save should be taken as soon as it can, by steps or by this process's clock."""
        minutes, now_s = self._save.minutes, self._clock()
        if now_s >= self._retry_at_s or self.due_by_steps(progress):
            return True
        return minutes is not None and now_s - self._last_s >= minutes * 60

    def due_by_steps(self, progress: Progress) -> bool:
        """Whether a save is due by steps alone, which all ranks see alike."""
        steps = self._save.steps
        return steps is not None and progress.step // steps > self._last_step // steps
