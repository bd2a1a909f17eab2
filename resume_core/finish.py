"""Ends: of a run, and of each of several fits that one script makes.

A fit is saved twice at its end. At its last boundary, like at any other: from there a run goes on whose limits were
raised. And when everything of it is over, marked ``finished``: from there nothing is trained, and the live objects
become what they were at the end. A fit is known by its place, counted from 0 within one start of the script:

- the newest checkpoint is of this fit: it goes on from there, or is over;
- it is of a later one: this fit was completed by an earlier attempt, and its end state is looked for;
- it is of an earlier one: this fit begins, from the live objects.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import Any

from resume_core.ends import finished_fit, fit_of
from resume_core.errors import CheckpointNotFoundError, CorruptCheckpointError
from resume_core.restore import Restored
from resume_core.state import Ending, Progress
from resume_core.storage import CheckpointRef, Manifest

__all__ = ["Fits", "finished_fit", "mark"]

_STOP = "stop"
_OURS = ", which this very process has trained: another training, as of the next fold, needs a directory of its own"


def mark(fit: int, ending: Ending | None) -> dict[str, Any]:
    """What the header of a checkpoint says about its fit.

    Args:
        fit: its place.
        ending: how the fit ended, None before its end.
    """
    return {"fit": fit, "finished": None if ending is None else asdict(ending)}


class Fits:
    """What one fit makes of the checkpoints in the run's directory.

    Args:
        fit: its place.
        limits: what ends it: names of counters and where they stop.
        read: gives the manifest of a checkpoint.
    """

    def __init__(self, fit: int, limits: Mapping[str, float], read: Callable[[CheckpointRef], Manifest]) -> None:
        self.fit = fit
        self._limits, self._read = limits, read
        self.later: int | None = None
        """A fit after this one that has checkpoints: this one was completed."""
        self.origin: CheckpointRef | None = None
        """The newest checkpoint of the fits before this one, when this one has none of its own."""
        self.passed_over: str | None = None
        """An end state that is none any more, because a limit was raised."""

    def choose(self, refs: Iterable[CheckpointRef]) -> Iterator[CheckpointRef]:
        """Those of a line, newest first, that this fit may be restored from."""
        for ref in refs:
            try:
                place, finished = fit_of(self._read(ref))
            except (CorruptCheckpointError, CheckpointNotFoundError):
                yield ref  # reported where it is read
                continue
            if place < self.fit:
                self.origin = self.origin or ref
                return
            if place > self.fit:
                self.later = self.later or place
            elif self.later is not None:
                if finished is not None:
                    yield ref
            elif finished is not None and self.reason(finished, Progress()) is None:
                self.passed_over = ref.path
            else:
                yield ref

    def seen(self) -> list[Any]:
        """What `choose` has found out on rank 0, as strict JSON."""
        origin = self.origin
        return [self.later, self.passed_over, origin and [origin.attempt, origin.name, origin.serial]]

    def adopt(self, seen: list[Any]) -> None:
        """Take over what rank 0 has seen."""
        self.later, self.passed_over, origin = seen
        self.origin = origin and CheckpointRef(*origin)

    def is_over(self, restored: Restored | None, url: str, log: logging.Logger, *, is_ours: bool = False) -> bool:
        """Whether nothing is left to be trained in this fit, and say so; after `choose`.

        Args:
            restored: what was found, None for nothing.
            url: the run's directory.
            log: where messages go.
            is_ours: whether this very process has saved it.
        """
        if restored is None:
            if self.later is not None:
                log.warning(
                    "fit %d of this script was completed by an earlier attempt, and its end state is not in %s any "
                    "more: nothing is loaded and nothing is trained until fit %d goes on",
                    *(self.fit, url, self.later),
                )
            return self.later is not None
        reason = self.reason(restored.finished, restored.progress)
        if reason is not None:
            log.log(
                logging.WARNING if is_ours else logging.INFO,
                "nothing to train: %s. The state is that of step %d, epoch %d, from %s (%s)%s",
                *(reason, restored.progress.step, restored.progress.epoch, restored.ref.path, url),
                _OURS if is_ours else "",
            )
        elif self.passed_over is not None:
            log.info("%s is the end of a shorter run; this one goes on from before it", self.passed_over)
        return reason is not None

    def refuse_lost_end(self, url: str) -> None:
        """Do not begin anew a run of which the end is there.

        Raises:
            CheckpointNotFoundError: an end state was passed over, and nothing from before it was found.
        """
        if self.passed_over is not None:
            raise CheckpointNotFoundError(
                f"{self.passed_over} in {url} is the end of a run, and training that goes on must start from before "
                'it. Name an older checkpoint, put the limit back, or start anew on purpose with resume="never".',
                path=self.passed_over,
            )

    def reason(self, finished: Mapping[str, Any] | None, progress: Progress) -> str | None:
        """Why nothing is left to be trained after a checkpoint, None when something is.

        Args:
            finished: what its header says about its end.
            progress: where it was taken.
        """
        if self.later is not None:
            return f"fit {self.fit} of this script was completed before fit {self.later} began"
        if finished is None:
            # the hooks at the end of the last epoch are still due at a boundary at which a limit is just reached
            passed = {"max_epochs": progress.epoch, "max_steps": progress.step - 1}
        elif finished["cause"] == _STOP:
            return "training was stopped (trainer.should_stop, as EarlyStopping sets it)"
        else:
            passed = finished["reached"]
        over = [name for name, limit in self._limits.items() if name in passed and passed[name] >= limit]
        return " and ".join(f"{name}={self._limits[name]:g} was reached" for name in over) or None
