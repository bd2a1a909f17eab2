"""When a save is due."""

from __future__ import annotations

import time
from collections.abc import Callable

from resume_core.policy import SaveEvery
from resume_core.state import Progress

__all__ = ["Schedule"]


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

    def restart(self, progress: Progress) -> None:
        """A save was taken, or the run went on, at ``progress``: count from here."""
        self._last_step = progress.step
        self._last_s = self._clock()

    def due(self, progress: Progress) -> bool:
        """Whether a save should be taken as soon as it can."""
        steps, minutes = self._save.steps, self._save.minutes
        if steps is not None and progress.step // steps > self._last_step // steps:
            return True
        return minutes is not None and self._clock() - self._last_s >= minutes * 60
