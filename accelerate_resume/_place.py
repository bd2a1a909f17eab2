"""Where a run stands: the moment at which it was saved, and how far it was."""

from __future__ import annotations

from dataclasses import dataclass

from accelerate_resume._passes import Pass, TrackedLoader
from resume_core.state import Progress

__all__ = ["AT_END", "AT_FETCH", "BETWEEN", "Counts", "Place"]

BETWEEN, AT_FETCH, AT_END = "between epochs", "at a fetch", "at the end of a pass"


@dataclass
class Place:
    """A moment of a run, `BETWEEN` epochs unless said otherwise.

    Attributes:
        kind: `BETWEEN`, `AT_FETCH` or `AT_END`.
        slot: of the loader that leads.
        index: of its pass.
        begun: whether a batch of that pass was given away.
    """

    kind: str = BETWEEN
    slot: int = -1
    index: int = -1
    begun: bool = False

    def is_at(self, loader: TrackedLoader, one: Pass) -> bool:
        """Whether that pass of that loader leads."""
        return (self.slot, self.index) == (loader.slot, one.index)


@dataclass
class Counts:
    """How far a run is.

    Attributes:
        step: optimizer steps done.
        batch: batches trained on.
        epoch: the current one; -1 before the first.
        epoch_batch: batches of it.
        epoch_slot: the loader that began to train the run: with a range of the user's own, its passes are the epochs.
    """

    step: int = 0
    batch: int = 0
    epoch: int = -1
    epoch_batch: int = 0
    epoch_slot: int = -1

    def progress(self, *, in_window: bool, is_last: bool, ends_epoch: bool) -> Progress:
        """Where the run stands, for the session."""
        return Progress(
            step=self.step,
            batch=self.batch,
            epoch=max(self.epoch, 0),
            epoch_batch=self.epoch_batch,
            in_window=in_window,
            is_last=is_last,
            ends_epoch=ends_epoch,
        )
