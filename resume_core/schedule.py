"""When a save is due."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable

from resume_core.cadence import best_interval
from resume_core.history import History
from resume_core.policy import SaveEvery
from resume_core.state import Progress

__all__ = ["RETRY_S", "Cadence", "Schedule"]

RETRY_S = 30.0
"""After a failed save, seconds until the next try; a disk that is full for a moment must not use up all tries."""

_UNMEASURED_MINUTES = 10.0  # until a save is measured, where the user named none
_WORTH_SAYING = 0.1  # share by which the interval has changed since it was said last
_SETTLED_S, _SETTLED_SAVES = 60.0, 3  # before that, nobody knows what share of the time saving takes


class Cadence:
    """How often to save, from what saves have cost and how often the run is interrupted.

    Args:
        save: the user's policy.
        history: of the attempt, which knows what its saves took.
        log: where changes go.
    """

    def __init__(self, save: SaveEvery, history: History, log: logging.Logger) -> None:
        self._save, self._history, self._log = save, history, log
        self._mtbf_s = (save.mtbf_hours or 0.0) * 3600
        self._known = "SaveEvery(mtbf_hours=...)"
        self._said_s = 0.0
        self._has_warned = False
        minutes = save.minutes or (None if save.mtbf_hours is None else _UNMEASURED_MINUTES)
        self.interval_s = None if minutes is None else minutes * 60
        """Seconds between saves; None for no rule by time."""

    @property
    def adapts(self) -> bool:
        """Whether it follows what saves cost and how often the run is interrupted."""
        return self._save.mtbf_hours is not None

    def observe(self, num: int, up_s: float) -> None:
        """What earlier attempts of the run have seen: the time given counts as one interruption beside those.

        Args:
            num: how many of them the machine has interrupted, see `resume_core.goodput`.
            up_s: how long all of them were up.
        """
        if self._save.mtbf_hours is None or not num:
            return
        self._mtbf_s = (self._mtbf_s + up_s) / (1 + num)
        times = "1 interruption" if num == 1 else f"{num} interruptions"
        self._known = f"{times} in {up_s / 3600:.2f} h and SaveEvery(mtbf_hours={self._save.mtbf_hours:g})"

    def learn(self) -> None:
        """A save has ended: reckon anew, and warn once when saving costs more than it may."""
        cost_s, drain_s = self._history.blocked_s, self._history.drain_s
        if cost_s is None or drain_s is None:
            return
        if self._save.mtbf_hours is not None:
            self._adapt(cost_s, drain_s)
        self._warn(cost_s)

    def _adapt(self, cost_s: float, drain_s: float) -> None:
        found = best_interval(cost_s, drain_s, self._mtbf_s, self._save.max_overhead)
        self.interval_s = found.seconds
        if abs(found.seconds - self._said_s) <= _WORTH_SAYING * self._said_s:
            return
        self._said_s = found.seconds
        why = {
            "optimum": "the optimum of Young and Daly",
            "store": f"as often as the directory can take it; the optimum would be {found.optimum_s:.1f} s",
            "cap": f"which costs {self._save.max_overhead:.2%} of the time, the most that "
            f"SaveEvery(max_overhead=...) allows; the optimum would be {found.optimum_s:.1f} s",
        }[found.why]
        self._log.info(
            "a save every %.1f s from now on: %s. A save keeps training waiting for %.3f s and is in the directory "
            "after %.2f s; the time between interruptions is %.2f h (%s)",
            *(found.seconds, why, cost_s, drain_s, self._mtbf_s / 3600, self._known),
        )

    def _warn(self, cost_s: float) -> None:
        measured, most = self._history.overhead, self._save.max_overhead
        if measured is None or self._has_warned:
            return
        share, since_s, num = measured
        if num < _SETTLED_SAVES or since_s < _SETTLED_S or share <= most:
            return
        self._has_warned = True
        self._log.warning(
            "saving has kept training waiting for %.1f %% of the time so far (%d saves in %.0f s, %.3f s each), more "
            "than SaveEvery(max_overhead=%g) means to spend. A save every %.1f minutes would cost that much: save "
            "less often, or allow more",
            *(100 * share, num, since_s, cost_s, most, (cost_s / most - cost_s) / 60),
        )


class Schedule:
    """Decides from steps, epochs and the clock whether a boundary should save.

    Steps and epochs count from the start of the run, not from the last save: every attempt saves at the same ones.

    Args:
        save: the user's policy.
        cadence: says how many seconds are between saves.
        clock: monotonic seconds.
    """

    def __init__(self, save: SaveEvery, cadence: Cadence, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._save, self._cadence, self._clock = save, cadence, clock
        self._last_step = 0
        self._at: Progress | None = None  # what it counts from
        self._last_s = clock()
        self._retry_at_s = math.inf

    def failed(self, num_in_a_row: int) -> None:
        """A save failed: try again in a while, longer after each failure, unless one is due before."""
        self._retry_at_s = self._clock() + RETRY_S * num_in_a_row

    def restart(self, progress: Progress) -> None:
        """A save was taken, or the run went on, at ``progress``: count from here."""
        self._last_step, self._at = progress.step, progress
        self._last_s = self._clock()
        self._retry_at_s = math.inf

    def learn(self) -> None:
        """A save has ended: see `Cadence.learn`."""
        self._cadence.learn()

    def due(self, progress: Progress) -> bool:
        """Whether a save should be taken as soon as it can, by count or by this process's clock.

        Never where it counts from: a framework may ask twice at one boundary, and nothing was trained between.
        """
        at = self._at
        if at is not None and progress.batch == at.batch and progress == at:
            return False
        interval_s, now_s = self._cadence.interval_s, self._clock()
        if now_s >= self._retry_at_s or self.due_by_count(progress):
            return True
        return interval_s is not None and now_s - self._last_s >= interval_s

    def due_by_count(self, progress: Progress) -> bool:
        """Whether a save is due by steps or epochs alone, which all ranks see alike."""
        steps, epochs = self._save.steps, self._save.epochs
        if steps is not None and progress.step // steps > self._last_step // steps:
            return True
        return epochs is not None and progress.ends_epoch and (progress.epoch + 1) % epochs == 0
