"""The saves of one attempt: taken, in flight, ended well or not.

A save is staged, and brought to the run's directory. With a scratch in front of that it goes two ways:

1. **near**: from memory to the scratch, where it is committed. Then the memory is free for the next save.
2. **far**: from the files on the scratch to the directory, where it is committed again: it is promoted.

Without a scratch, or when the scratch refused (it is full, most of the time), it goes the far way from memory. One save
at a time is on each way, so nothing else is written to a tier meanwhile; one may wait for the far way, and a newer one
takes its place there. So the scratch holds three at most: one that is promoted, the newest, one that is written; and
after the end of training two, the save at the last batch and the end state.

A save is over on a way when the files of every rank are written and rank 0 has committed, or when any rank has failed.
Each rank knows its own share; at a meeting of the ranks (`boundaries`, `session`) the shares are put together with
`merge`, and all conclude alike, so that all ranks promote the same ones.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from resume_core.checkpointer import Checkpointer, Pending
from resume_core.errors import SaveFailedError
from resume_core.flights import Flight, Outcomes
from resume_core.history import History
from resume_core.policy import Keep
from resume_core.scratch import require_room
from resume_core.shares import await_commit, bring
from resume_core.state import Progress, State
from resume_core.storage import (
    Attempt,
    Brief,
    CheckpointRef,
    CheckpointSlots,
    CheckpointWriter,
    Lineage,
    Slot,
    Store,
    clean,
    copy_share,
    prune,
)
from resume_core.writer import Writer

__all__ = ["Saves"]

_MAX_FAILURES = 3  # failed saves in a row that end training
_KEEP_NEAR = Keep(last=1)  # the scratch is a cache: what is older has a successor there, or is in the directory


@dataclass(frozen=True)
class _Save:
    """A save on its way.

    Attributes:
        slot: its place.
        step: optimizer steps done.
        pending: its share in memory, None when it is on the scratch.
        source: where on the scratch.
        taken_s: when it was asked for, by ``time.perf_counter``.
    """

    slot: Slot
    step: int
    taken_s: float
    pending: Pending | None = None
    source: CheckpointRef | None = None


class Saves:
    """Takes saves, one at a time, and keeps count of how they went.

    Args:
        checkpointer: stages.
        lineage: of the run, whose directory is written to.
        keep: which checkpoints stay in the directory.
        log: where messages go.
        history: told what each save took.
        pin: tells the checkpoints that ``keep`` does not count, see `prune`.
    """

    def __init__(
        self,
        checkpointer: Checkpointer,
        lineage: Lineage,
        keep: Keep,
        log: logging.Logger,
        history: History,
        *,
        pin: Callable[[Brief], Hashable] | None = None,
    ) -> None:
        self._checkpointer, self._lineage, self._keep, self._log, self._pin = checkpointer, lineage, keep, log, pin
        self._history = history
        self._near, self._far = Flight[_Save](), Flight[_Save]()
        self._waiting: _Save | None = None  # for the far way
        self._cleaner = Writer()
        self._said = set[str]()
        self._scratch: Store | None = None
        self._attempt: Attempt | None = None
        self._slots: CheckpointSlots | None = None
        self._is_closed = False
        self._refused = False  # whether the scratch did at the last save
        self._is_near = False  # whether a checkpoint of this attempt is on the scratch at least
        self._num_failed_in_a_row = 0
        self.is_protected = False
        """Whether the run has a checkpoint in its directory to go back to."""

    def open(self, attempt: Attempt, scratch: Store | None = None, *, is_first: bool) -> None:
        """Save in ``attempt`` from now on; only rank 0 gives out places in it, and cleans up after older ones."""
        self._attempt, self._scratch = attempt, scratch
        self._slots = CheckpointSlots(self._lineage.store, attempt.name) if is_first else None
        if is_first:
            self._cleaner.submit(lambda: self._say(clean(self._lineage, attempt).failures))

    @property
    def num_failed_in_a_row(self) -> int:
        """Saves that failed since the last one that did not."""
        return self._num_failed_in_a_row

    @property
    def writer(self) -> Writer:
        """Of the way that a staged save goes first."""
        return self._far.writer if self._scratch is None else self._near.writer

    def next_place(self, step: int) -> list[Any]:
        """Where the next save goes, as strict JSON; rank 0 only."""
        assert self._slots is not None
        slot = self._slots.take(step)
        return [slot.attempt, slot.name, slot.serial]

    def take(
        self, capture: Callable[[], State], header: Mapping[str, Any], place: Sequence[Any], progress: Progress
    ) -> None:
        """Capture and stage now, write in the background, beginning with what is staged.

        Args:
            capture: gives the state.
            header: what the manifest will say; ``reason`` is why the save is taken.
            place: as `next_place` gave it to rank 0.
            progress: where training stands.

        Raises:
            UnsupportedStateError: a value that no checkpoint can hold, on any rank.
            SaveFailedError: another rank could not stage.
            OSError: no memory to stage in.
        """
        start_s, slot = time.perf_counter(), Slot(*place)

        def begun(pending: Pending) -> None:
            save, scratch = _Save(slot, progress.step, start_s, pending), self._scratch
            if scratch is None:
                self._send(save)
            else:
                self._near.start(save, lambda: self._write_near(save, scratch))

        self._checkpointer.stage(capture(), header, begun)
        self._history.took(slot.path, progress, header["reason"], time.perf_counter() - start_s)

    def adopt(self, ref: CheckpointRef, place: Sequence[Any], progress: Progress) -> None:
        """Save what an earlier attempt has left on the scratch alone as a checkpoint of this one, in the directory."""
        slot = Slot(*place)
        self._history.adopted(slot.path, progress)
        self._send(_Save(slot, progress.step, time.perf_counter(), source=ref))

    # ---- in the background

    def _write_near(self, save: _Save, scratch: Store) -> None:
        assert save.pending is not None
        attempt, size_bytes = self._prune(scratch), save.pending.size_bytes
        save.pending.write(
            scratch,
            save.slot,
            still_newest=lambda: self._lineage.check_claim(attempt),
            has_room=lambda: require_room(scratch, size_bytes),
        )
        self._history.note(save.slot.path, bytes=size_bytes, **save.pending.seconds)
        self._log.debug("saved %s on %s, %d bytes", save.slot.path, scratch.url, save.pending.size_bytes)

    def _write_far(self, save: _Save) -> None:
        attempt, start = self._attempt, time.perf_counter()
        assert attempt is not None
        store = self._lineage.store

        def still_newest() -> None:
            self._lineage.check_claim(attempt)

        if save.pending is not None:
            save.pending.write(store, save.slot, still_newest=still_newest)
            phases = {"bytes": save.pending.size_bytes, **save.pending.seconds}
        else:
            self._promote(save, still_newest)
            phases = {"promote_s": time.perf_counter() - start}
        seconds = time.perf_counter() - start
        self._history.note(save.slot.path, **phases, durable_s=time.perf_counter() - save.taken_s)
        self._log.debug("%s is in %s after %.1f s", save.slot.path, store.url, seconds)
        self._prune(store)
        if self._scratch is not None:
            self._prune(self._scratch)

    def _promote(self, save: _Save, still_newest: Callable[[], None]) -> None:
        assert save.source is not None
        source, ranks = save.source, self._checkpointer.ranks
        scratch = self._lineage.tiers.stores[0]

        def write(writer: CheckpointWriter) -> None:
            await_commit(self._lineage.tiers, source, ranks)
            copy_share(writer, scratch, source, ranks.rank, ranks.size)

        def header() -> Mapping[str, Any]:
            return self._lineage.on(scratch).read_manifest(source).header

        bring(self._lineage.store, save.slot, ranks, write=write, header=header, still_newest=still_newest)

    def _prune(self, store: Store) -> Attempt:
        """On rank 0; elsewhere nothing."""
        assert self._attempt is not None
        if self._slots is None:
            return self._attempt
        if store is self._lineage.store:
            pruned = prune(self._lineage, self._keep, self._attempt, self._pin)
        else:
            pruned = prune(self._lineage, _KEEP_NEAR, self._attempt, self._pin_near, store=store, spare=self._sources)
        self._say(pruned.failures)
        if self._is_closed:  # a save that nobody waited for
            store.release()
        return self._attempt

    def _sources(self) -> list[str]:
        """What is promoted, or going to be; asked in the background, while a save may cease to wait and begin."""
        saves = [self._waiting]
        saves.append(self._far.load)  # looked at second: one that is in neither has been promoted
        return [save.source.path for save in saves if save is not None and save.source is not None]

    def _pin_near(self, brief: Brief) -> Hashable:
        """An end state has no successor, so the newest of all fits stays beside the save at the last batch."""
        return None if self._pin is None or self._pin(brief) is None else True

    def _say(self, failures: Sequence[str]) -> None:
        """Once each: what could not be deleted is met again after every save."""
        for problem in failures:
            if problem not in self._said:
                self._said.add(problem)
                self._log.warning("an old checkpoint could not be deleted: %s", problem)

    # ---- outcomes

    @property
    def has_ended(self) -> bool:
        """Whether a save has ended on this rank and was not concluded."""
        return self._near.has_ended or self._far.has_ended

    @property
    def in_flight(self) -> bool:
        """Whether a save was not brought to the directory yet and is not given up; alike on all ranks."""
        return any(save is not None for save in (self._near.load, self._far.load, self._waiting))

    @property
    def in_memory(self) -> bool:
        """Whether a save still needs the memory it was staged in; alike on all ranks."""
        return any(save is not None and save.pending for save in (self._near.load, self._far.load, self._waiting))

    def can_take(self, outcomes: Outcomes) -> bool:
        """Whether a save can be staged when ``outcomes`` are concluded."""
        near, far = outcomes["near"][0], outcomes["far"][0]
        if "superseded" in (near, far) or near in ("busy", "failed"):
            return False
        on_far = self._far.load if far == "busy" else None
        return not any(save is not None and save.pending for save in (on_far, self._waiting))

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait until nothing is in flight on this rank; the outcomes stay to be concluded.

        Raises:
            TimeoutError: something was after ``timeout_s`` seconds.
        """
        start = time.monotonic()
        for writer in (self._near.writer, self._far.writer, self._cleaner):
            writer.wait(None if timeout_s is None else max(timeout_s - (time.monotonic() - start), 0.0))

    def wait_for_memory(self) -> None:
        """Wait for what still needs the memory it was staged in, and for what that waits for."""
        self._near.writer.wait()
        if any(save is not None and save.pending for save in (self._far.load, self._waiting)):
            self._far.writer.wait()

    def close(self) -> None:
        """No save is taken any more."""
        self._is_closed = True  # first: a prune that is under way sees it, or is over by the time of the release
        for store in self._lineage.tiers.stores:
            store.release()

    def outcomes(self) -> Outcomes:
        """How the saves in flight stand on this rank."""
        return {"near": self._near.outcome(), "far": self._far.outcome()}

    def conclude(self, outcomes: Outcomes, *, strict: bool) -> bool:
        """All ranks know how the saves in flight stand.

        Args:
            outcomes: of all ranks, see `merge`.
            strict: raise any failure.

        Returns:
            Whether a save failed and training goes on.

        Raises:
            SaveFailedError: the first save of a new run failed, or the third in a row, or ``strict``.
            SupersededError: a newer attempt of the run has started.
        """
        near, far = self._near.conclude(outcomes["near"]), self._far.conclude(outcomes["far"])
        if near is not None:
            self._send(self._after_near(near[0], *outcomes["near"]))
        # one that a newer one follows is not the last; the first is to show that the directory can be written
        strict = (strict and self._waiting is None) or not self.is_protected
        self._advance()
        if far is None:
            return False
        save, error = far
        if outcomes["far"][0] == "done":
            self._history.note(save.slot.path, end="durable")
            self.is_protected, self._num_failed_in_a_row = True, 0
            return False
        text = outcomes["far"][1]
        self._history.note(save.slot.path, end="failed")
        if save.source is not None:
            text = f"from {self._lineage.tiers.stores[0].locate(save.source.path)}: {text}"
        self.failed(text, error, save.step, strict=strict)
        return True

    def _after_near(self, save: _Save, word: str, text: str) -> _Save:
        """What goes the far way."""
        if word == "done":
            self._refused, self._is_near = False, True
            source = CheckpointRef(save.slot.attempt, save.slot.name)
            return _Save(save.slot, save.step, save.taken_s, source=source)
        if not self._refused:
            assert self._scratch is not None
            self._log.warning(
                "the save at step %d goes to %s at once, and so do later ones while scratch=%r refuses them: %s",
                *(save.step, self._lineage.store.url, self._scratch.url, text),
            )
        self._refused = True
        return save

    def _send(self, save: _Save) -> None:
        """The far way, in place of an older save that still waits for it."""
        if self._waiting is not None:
            self._history.note(self._waiting.slot.path, end="replaced")
        self._waiting = save
        self._advance()

    def _advance(self) -> None:
        if self._waiting is not None and self._far.load is None:
            save = self._waiting
            self._far.start(save, lambda: self._write_far(save))
            self._waiting = None  # after it has begun, see `_sources`

    def failed(self, text: str, error: BaseException | None, step: int, *, strict: bool) -> None:
        """Say that a save failed; raise when training should not go on like that."""
        self._num_failed_in_a_row += 1
        is_safe = self.is_protected or self._is_near
        kept = "older checkpoints are intact" if is_safe else "no checkpoint exists yet"
        message = f"the save at step {step} failed ({text}); {kept}"
        self._log.error("%s", message, exc_info=error)
        if strict or not is_safe or self._num_failed_in_a_row >= _MAX_FAILURES:
            raise SaveFailedError(message, path=self._lineage.store.url, step=step) from error
