"""The saves of one attempt: taken, in flight, ended well or not; what all ranks make of it.

A save is over when the files of every rank are written and rank 0 has committed, or when any rank has failed. Each rank
knows its own share; the boundary's meeting (`session`) puts the shares together with `merge`, and all conclude alike.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from resume_core.checkpointer import Checkpointer, Pending
from resume_core.errors import SaveFailedError, SupersededError
from resume_core.policy import Keep
from resume_core.state import State
from resume_core.storage import Attempt, CheckpointSlots, Lineage, Manifest, Slot, prune
from resume_core.writer import Writer

__all__ = ["Outcome", "Saves", "merge"]

_MAX_FAILURES = 3  # failed saves in a row that end training

Outcome = list[str]
"""How the save in flight stands, on one rank or on all, as strict JSON: a word of `_WORDS`, and what went wrong."""

_WORDS = ("idle", "done", "failed", "superseded", "busy")  # of all ranks, the word furthest to the right holds


def merge(outcomes: Sequence[Outcome]) -> Outcome:
    """What holds for all ranks."""
    worst = max(range(len(outcomes)), key=lambda rank: _WORDS.index(outcomes[rank][0]))
    word, text = outcomes[worst]
    return [word, f"on rank {worst}: {text}" if text and len(outcomes) > 1 else text]


@dataclass
class _Ended:
    """The save that ended last, on this rank, until all ranks have heard of it."""

    outcome: Outcome
    error: BaseException | None


class Saves:
    """Takes saves, one at a time, and keeps count of how they went.

    Args:
        checkpointer: stages.
        lineage: of the run's store, which is written to.
        keep: which checkpoints stay.
        log: where messages go.
        pin: tells the checkpoints that ``keep`` does not count, see `prune`.
    """

    def __init__(
        self,
        checkpointer: Checkpointer,
        lineage: Lineage,
        keep: Keep,
        log: logging.Logger,
        *,
        pin: Callable[[Manifest], Hashable] | None = None,
    ) -> None:
        self._checkpointer, self._lineage, self._keep, self._log, self._pin = checkpointer, lineage, keep, log, pin
        self.writer = Writer()
        self._attempt: Attempt | None = None
        self._slots: CheckpointSlots | None = None
        self._step = 0  # that of the save in flight
        self._ended: _Ended | None = None
        self._num_failed_in_a_row = 0
        self._blocked_s: list[float] = []
        self.is_protected = False
        """Whether the run has a committed checkpoint to go back to."""

    def open(self, attempt: Attempt, *, is_first: bool) -> None:
        """Save in ``attempt`` from now on; only rank 0 gives out places in it."""
        self._attempt = attempt
        self._slots = CheckpointSlots(self._lineage.store, attempt.name) if is_first else None

    @property
    def blocked_s(self) -> float | None:
        """Median seconds that a save kept training waiting; None before the first."""
        blocked = sorted(self._blocked_s)
        return blocked[len(blocked) // 2] if blocked else None

    @property
    def num_failed_in_a_row(self) -> int:
        """Saves that failed since the last one that did not."""
        return self._num_failed_in_a_row

    def next_place(self, step: int) -> list[Any]:
        """Where the next save goes, as strict JSON; rank 0 only."""
        assert self._slots is not None
        slot = self._slots.take(step)
        return [slot.attempt, slot.name, slot.serial]

    def take(self, state: State, header: Mapping[str, Any], place: Sequence[Any], step: int) -> None:
        """Stage now, write in the background.

        Raises:
            UnsupportedStateError: a value that no checkpoint can hold, on any rank.
            SaveFailedError: another rank could not stage.
            OSError: no memory to stage in.
        """
        assert self._attempt is not None
        start = time.perf_counter()
        pending = self._checkpointer.stage(state, header)
        attempt, slot = self._attempt, Slot(*place)
        self._step = step
        self.writer.submit(lambda: self._write(pending, slot, attempt))
        self._blocked_s.append(time.perf_counter() - start)

    def _write(self, pending: Pending, slot: Slot, attempt: Attempt) -> None:
        manifest = pending.write(self._lineage.store, slot, still_newest=lambda: self._lineage.check_newest(attempt))
        if manifest is None:
            return
        self._log.debug("saved %s, %d bytes", manifest.ref.path, pending.size_bytes)
        for problem in prune(self._lineage, self._keep, attempt, self._pin).failures:
            self._log.warning("an old checkpoint could not be deleted: %s", problem)

    # ---- outcomes

    @property
    def has_ended(self) -> bool:
        """Whether a save has ended on this rank and was not concluded."""
        return self._ended is not None or self.writer.has_ended

    def outcome(self) -> Outcome:
        """How the save in flight stands on this rank."""
        ended, error = self.writer.take_outcome()
        if ended:
            word = "done" if error is None else "superseded" if isinstance(error, SupersededError) else "failed"
            text = "" if error is None else str(error) if word == "superseded" else f"{type(error).__name__}: {error}"
            self._ended = _Ended([word, text], error)
        if self._ended is not None:
            return self._ended.outcome
        return ["busy" if self.writer.busy else "idle", ""]

    def conclude(self, outcome: Outcome, *, strict: bool) -> bool:
        """All ranks know how the save in flight ended.

        Args:
            outcome: of all ranks, see `merge`.
            strict: raise any failure.

        Returns:
            Whether a save failed and training goes on.

        Raises:
            SaveFailedError: the first save of a new run failed, or the third in a row, or ``strict``.
            SupersededError: a newer attempt of the run has started.
        """
        word, text = outcome
        if word in ("idle", "busy"):
            return False
        ended, self._ended = self._ended, None
        error = ended.error if ended is not None else None
        if word == "superseded":
            raise error if isinstance(error, SupersededError) else SupersededError(text)
        if word == "done":
            self.is_protected, self._num_failed_in_a_row = True, 0
            return False
        self.failed(text, error, self._step, strict=strict)
        return True

    def failed(self, text: str, error: BaseException | None, step: int, *, strict: bool) -> None:
        """Say that a save failed; raise when training should not go on like that."""
        self._num_failed_in_a_row += 1
        kept = "older checkpoints are intact" if self.is_protected else "no checkpoint exists yet"
        message = f"the save at step {step} failed ({text}); {kept}"
        self._log.error("%s", message, exc_info=error)
        if strict or not self.is_protected or self._num_failed_in_a_row >= _MAX_FAILURES:
            raise SaveFailedError(message, path=self._lineage.store.url, step=step) from error
