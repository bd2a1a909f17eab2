"""Metrics of the user in the header of a checkpoint, by which `Keep` finds the best."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping

from resume_core.policy import Keep
from resume_core.state import Progress

__all__ = ["BestWatch", "metric_entries"]

_MAX_NAMES = 10


def metric_entries(metrics: Mapping[str, float]) -> dict[str, float | str]:
    """Metrics as strict JSON: what is not finite is text, which ``float`` reads."""
    return {name: value if math.isfinite(value) else str(value) for name, value in metrics.items()}


class BestWatch:
    """Says, once, that the metric of `Keep.best` is in no save: a misspelt name would keep nothing.

    Args:
        keep: the user's policy.
        log: where it is said.
    """

    def __init__(self, keep: Keep, log: logging.Logger) -> None:
        self._best, self._log = keep.best, log

    def look(self, progress: Progress, metrics: Mapping[str, float]) -> None:
        """A save is taken. Nothing is said before the first epoch is over: a validation may come at its end."""
        if self._best is None or self._best in metrics or not (progress.epoch or progress.ends_epoch):
            return
        known = sorted(metrics)
        shown = ", ".join(known[:_MAX_NAMES]) + (", ..." if len(known) > _MAX_NAMES else "")
        self._log.warning(
            "Keep(best=%r): no such metric is logged at step %d, so no checkpoint is kept for it; there %s",
            *(self._best, progress.step, f"is: {shown}" if known else "is none"),
        )
        self._best = None
