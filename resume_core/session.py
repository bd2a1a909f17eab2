"""The life of one attempt: every decision about saving, restoring and refusing is taken here.

A plugin calls, in this order, and with several ranks on each of them alike::

    prepare()            only when loaders are needed earlier than that
    start()              candidates, config diff, read, apply         (nothing is loaded before the diff)
    begin(progress)      claim the attempt, first save of a new run   (right before the first batch)
    boundary(progress)   between two batches, again and again
    finish(progress, ..) everything of the fit is done: save its end state
    end(error)           wait for the save in flight

After `start`, ``is_over`` says that nothing is left to be trained: then neither `begin` nor what follows is called.
"""

from __future__ import annotations

import contextlib
import datetime
import logging
import os
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any, NoReturn

from resume_core.accepted import consequences, is_same_machine, restore_threads
from resume_core.beginning import Beginning
from resume_core.boundaries import Boundaries
from resume_core.candidates import open_lineage, resume_mode
from resume_core.capture.runconfig import to_json
from resume_core.checkpointer import Checkpointer
from resume_core.claims import is_of_this_process
from resume_core.drill import of_environment
from resume_core.embedded import Given
from resume_core.errors import (
    DivergedError,
    SaveFailedError,
    UnsupportedStateError,
)
from resume_core.evidence import Evidence, going_back
from resume_core.finish import finished_fit, mark
from resume_core.framework import Framework
from resume_core.history import History
from resume_core.leaving import Leaving
from resume_core.metrics import BestWatch, metric_entries
from resume_core.opening import Opening
from resume_core.policy import Changes, Check, Keep, Preemption, SaveEvery, Watch
from resume_core.restore import Restored
from resume_core.saves import Saves
from resume_core.schedule import Cadence, Schedule
from resume_core.state import Ahead, Ending, Progress, RunConfig, State
from resume_core.storage import Attempt, Slot

__all__ = ["Restored", "Session"]


class Session:
    """One attempt of a run.

    Args:
        framework: captures and applies.
        directory: the run's directory, local or any fsspec URL.
        scratch: a fast local directory in front of it, see `saves`; None for none.
        resume: see `resume_mode`.
        save: when to save.
        keep: which checkpoints stay.
        changes: what may differ from the run that saved.
        preemption: what to do when the machine is taken away.
        check: of the first steps after a resume.
        watch: what is watched all along.
        storage_options: passed to fsspec.
        fit: the place of this fit among those that the script makes in this directory, from 0.
        log: where messages go.

    Raises:
        ValueError: an unusable ``directory``, ``scratch`` or ``resume``.
    """

    def __init__(
        self,
        framework: Framework,
        directory: str | os.PathLike[str],
        *,
        scratch: str | os.PathLike[str] | None = None,
        resume: str = "auto",
        save: SaveEvery | None = None,
        keep: Keep | None = None,
        changes: Changes | None = None,
        preemption: Preemption | None = None,
        check: Check | None = None,
        watch: Watch | None = None,
        storage_options: Mapping[str, Any] | None = None,
        fit: int = 0,
        log: logging.Logger | None = None,
    ) -> None:
        self._framework = framework
        self._resume = resume_mode(resume)
        self._save, self._keep = save or SaveEvery(), keep or Keep()
        self._log = log or logging.getLogger("exact_resume")
        self._ranks = framework.ranks
        self._lineage = open_lineage(directory, scratch, storage_options)
        self._store = self._lineage.store
        self._checkpointer = Checkpointer(self._store, self._ranks)
        self._beginning = Beginning(
            framework,
            self._lineage,
            self._checkpointer,
            resume=self._resume,
            changes=changes or Changes(),
            fit=fit,
            log=self._log,
        )
        # each asks the other, and not this session: a history lives until the interpreter ends, and a model must not
        history = self._history = History(self._log, lambda: leaving.received)
        self._saves = Saves(self._checkpointer, self._lineage, self._keep, self._log, self._history, pin=finished_fit)
        self._cadence = Cadence(self._save, self._history, self._log)
        self._opening = Opening(
            self._beginning,
            self._lineage,
            self._ranks,
            saves=self._saves,
            history=self._history,
            cadence=self._cadence,
            log=self._log,
        )
        self._best = BestWatch(self._keep, self._log)
        self._drill = of_environment(self._store.url, is_first=self._ranks.is_first)
        self._evidence = self._new_evidence(check or Check(), watch or Watch())
        self.observer = self._evidence.observer
        """To be told of batches, losses and gradients."""
        leaving = self._leaving = Leaving(
            preemption or Preemption(), self._ranks, self._lineage.tiers, self._log, lambda: history.slowest_s
        )
        self._boundaries = self._new_boundaries()
        self._saved_at: int | None = None  # the batch of the newest save
        self._boundary: Progress | None = None  # the last
        self._is_stranded = False
        self.is_over = False
        """Whether the fit had come to its end before: nothing is left to be trained. Known after `start`."""
        self._attempt: Attempt | None = None
        self._checked_at: int | None = None
        self._start_s = time.monotonic()
        self._pid = os.getpid()

    def _new_evidence(self, check: Check, watch: Watch) -> Evidence:
        if self._drill is not None:
            check = replace(check, steps=check.steps or Check.steps, on_mismatch="warn")
        return Evidence(
            check,
            watch,
            self._ranks,
            self._log,
            self._framework.vitals,
            self._history.loss,
            advice=going_back(self._store.url),
            is_told_elsewhere=self._drill is not None,
        )

    def _new_boundaries(self) -> Boundaries:
        return Boundaries(
            self._ranks,
            Schedule(self._save, self._cadence),
            self._saves,
            asked=self._leaving.asked,
            early=self._leaving.early,
            pauses_s=self._leaving.pauses_s,
            alarm=lambda: self._evidence.alarm,
            holds=lambda: self._evidence.holds_saves,
        )

    # ---- restoring

    def starts_from(self, path: str | os.PathLike[str], *, named: bool) -> bool:
        """See `Beginning.starts_from`."""
        return self._beginning.starts_from(path, named=named)

    def give(self, given: Given) -> None:
        """See `Beginning.give`."""
        self._beginning.give(given)

    def preamble(self) -> Mapping[str, Any]:
        """See `Beginning.preamble`."""
        return self._beginning.preamble()

    def reconfigured(self) -> None:
        """See `Beginning.reconfigured`."""
        self._beginning.reconfigured()

    def prepare(self, seed: int | None) -> None:
        """See `Beginning.prepare`."""
        self._beginning.prepare(seed)

    @property
    def has_checkpoints(self) -> bool:
        """See `Beginning.has_checkpoints`."""
        return self._beginning.has_checkpoints

    @property
    def has_restored(self) -> bool:
        """Whether the run goes on from a checkpoint in its directory."""
        return self._beginning.restored is not None

    @property
    def identity(self) -> tuple[int, RunConfig]:
        """The run's key and config, once it has started."""
        return self._beginning.key, self._beginning.config

    @property
    def blocked_s(self) -> float | None:
        """Median seconds that a save of this attempt kept training waiting; None before the first."""
        return self._history.blocked_s

    def start(self, seed: int | None) -> Restored | None:
        """Find the newest valid checkpoint of the run's line, compare configurations, and apply it.

        Args:
            seed: the user's seed, None when there is none.

        Returns:
            What was restored, None for a new run.

        Raises:
            ConfigChangedError: the run differs; nothing was loaded.
            CheckpointNotFoundError: one was required or named and is not there, or cannot be gone on from.
            CorruptCheckpointError: checkpoints exist and none of them can be used.
            OSError: the store cannot be read.
        """
        self._start_s = time.monotonic()
        if self._drill is None:  # a rehearsal has nothing to save, and ends at once
            self._leaving.watch()
        beginning = self._beginning
        found = beginning.find()
        if found is None:
            self.is_over = beginning.fits.is_over(None, self._store.url, self._log)
            if not self.is_over:
                beginning.begin_anew(seed)
            return None
        restored, state = found
        self._saved_at, self._saves.is_protected = restored.progress.batch, True
        self._expect(restored, state)
        self._framework.apply(state)
        restore_threads(restored.accepted, self._log)
        is_ours = is_of_this_process(self._store.url, restored.ref.attempt)
        self.is_over = beginning.fits.is_over(restored, self._store.url, self._log, is_ours=is_ours)
        if self.is_over and self._drill is not None and beginning.fits.later is None:
            self._drill.end({"verdict": "over", "checkpoint": restored.ref.path})
        if self.is_over and self._drill is None and not self._ranks.share("the end state", restored.is_promoted):
            self._open(restored.progress)  # `end` waits for it
        return restored

    def _expect(self, restored: Restored, state: State) -> None:
        """What was read, and what was recorded behind it, is what the first batches are compared with."""
        changed = ", ".join(consequences(restored.accepted))
        self._evidence.resume(
            self._store,
            restored.ref,
            restored.progress,
            restored.evidence,
            digest=restored.digest,
            is_same_machine=is_same_machine(restored.accepted),
            reason=f"the changes that were accepted ({changed})" if changed else "",
        )
        self._evidence.compare_with(lambda: self._framework.parts(state), lambda: self._framework.parts(None))

    # ---- running

    def begin(self, progress: Progress) -> None:
        """The first batch is about to be fetched: claim the attempt, and save a new run once.

        Raises:
            UnsupportedStateError: a value in the state that no checkpoint can hold.
            OSError: the store cannot be written.
        """
        if self._attempt is not None:
            return
        if self._drill is not None:
            self._drill.begin(progress, self._evidence)
            return
        attempt = self._open(progress)
        self._boundaries.begin(progress)
        self._evidence.open(self._store, attempt)
        self._evidence.begin(progress)
        self._history.begin(progress, resumed=self._beginning.restored is not None)
        if self._beginning.restored is not None:
            self._announce(self._beginning.restored, attempt)
        else:
            what = f"fit {self._beginning.fits.fit} of this script begins" if self._beginning.fits.fit else "a new run"
            self._log.info("%s: %s in %s", what, attempt.name, self._store.url)
            if self._save.at_start:
                place = self._ranks.agree("the start", None, lambda _: self._saves.next_place(progress.step))
                self._take(progress, "start", place)
        self._checked_at, self._boundary = progress.step, progress
        if (why := self._leaving.agreed()) is not None:
            self._leave(progress, why)

    def _open(self, progress: Progress) -> Attempt:
        restored, is_anew = self._beginning.restored, self._resume == "never"
        size_bytes = restored.all_bytes if restored else self._framework.weights_bytes
        self._attempt = self._opening.open(progress, keep=self._keep, size_bytes=size_bytes, anew=is_anew)
        return self._attempt

    def _announce(self, restored: Restored, attempt: Attempt) -> None:
        self._log.info(
            "resumed at step %d, batch %d, epoch %d from %s (%s) in %.1f s; this is %s",
            restored.progress.step,
            restored.progress.batch,
            restored.progress.epoch,
            restored.ref.path,
            restored.tier,
            time.monotonic() - self._start_s,
            attempt.name,
        )

    def pause(self, kind: str) -> contextlib.AbstractContextManager[None]:
        """A block between two boundaries that may last: a validation, the hooks at the end of an epoch."""
        is_saved = self._boundary is not None and self._saved_at == self._boundary.batch
        return self._leaving.pause(kind, self._boundaries.pauses_s, is_saved=is_saved)

    def boundary(self, progress: Progress, ahead: Ahead = tuple) -> bool:
        """A batch and everything that belongs to it is done: save if it is time.

        Args:
            progress: where training stands.
            ahead: asked only where a pause of any kind has been long.

        Returns:
            True when training should stop.

        Raises:
            SaveFailedError: the first save of a new run failed, or three saves in a row.
            SupersededError: a newer attempt of the run has started.
            DivergedError: the check of a resume has found something, or what is watched has.
            Drilled: this was a rehearsal, and is over.
            UnsupportedStateError: state that first exists after the first step cannot be saved.
            Preempted: a signal or a notice has come to any rank: the run is saved, and the process should end.
            ResumeError: the ranks are not at the same batch, or one did not come to the meeting.
        """
        if self._drill is not None:
            self._drill.boundary(progress, self._evidence)
        if self._attempt is None or self.is_over:
            return False
        if self._checked_at is not None and progress.step > self._checked_at:
            # moments of an optimizer exist only after its first step: refuse now rather than hours later
            self._checkpointer.prepare(self._framework.capture())
            self._checked_at = None
        if progress.is_last:
            self._boundaries.settle()
        self._boundary = progress
        self._history.at(progress)
        self._evidence.boundary(progress)
        if self._leaving.is_long(self._boundaries.pauses_s, ahead) and self._saved_at != progress.batch:
            self._boundaries.request(anywhere=True)
        if self._boundaries.is_meeting(progress):
            self._evidence.look_now()
            place = self._boundaries.meet(progress)
            if self._boundaries.alarm is not None:
                text = f"{self._boundaries.alarm}. Nothing was saved there. {going_back(self._store.url)}"
                raise DivergedError(text, step=progress.step)
            if self._boundaries.leaving is not None:
                self._leave(progress, self._boundaries.leaving)
            if place is not None:
                self._try(progress, place)
        return False

    def _leave(self, progress: Progress, why: str) -> NoReturn:
        """All ranks save here, wherever in a window that is, and end their processes."""

        def save() -> None:
            if self._saved_at != progress.batch:
                place = self._ranks.agree("the last save", None, lambda _: self._saves.next_place(progress.step))
                self._try(progress, place, "preempted")

        self._history.left = why
        self._evidence.conclude()
        self._leaving.leave(why, progress.step, self._boundaries, save)

    def leaves(self, why: str) -> None:
        """The framework itself ends the run before its end, for somebody who wants the machine; `end` comes next."""
        self._history.left = why

    def stranded(self, progress: Progress, error: BaseException) -> None:
        """An exception came while a batch was fetched, so all is as it was at the boundary before: save that, once.

        Only one rank alone does: others would not come to the meeting. What fails here is said; ``error`` counts.

        Args:
            progress: where training stands.
            error: the exception.
        """
        if os.getpid() != self._pid:  # see `end`
            return
        same = progress == self._boundary and not progress.ends_epoch and self._ranks.size == 1
        if self._attempt is None or self._is_stranded or not same or self._saved_at == progress.batch:
            return
        self._evidence.look_now()
        if self._evidence.holds_saves or self._evidence.alarm is not None:
            return
        self._is_stranded = True
        what = type(error).__name__
        self._log.warning("%s while a batch was fetched: the run is saved behind batch %d", what, progress.batch)
        try:
            self._boundaries.settle()
            self._try(progress, self._saves.next_place(progress.step), "exception")
        except Exception as problem:
            self._log.warning("it could not be saved there: %s: %s", type(problem).__name__, problem)

    def request(self) -> None:
        """Save at the next boundary that allows it, whatever the schedule says; with several ranks on each alike."""
        self._boundaries.request()

    def _try(self, progress: Progress, place: list[Any], reason: str = "schedule") -> None:
        try:
            self._take(progress, reason, place)
        except (UnsupportedStateError, SaveFailedError, OSError) as error:
            self._saves.failed(f"{type(error).__name__}: {error}", error, progress.step, strict=False)
            self._boundaries.failed(progress)

    def finish(self, progress: Progress, ending: Ending) -> None:
        """Training and all that belongs to it is over: save the end state; `end` waits for it.

        Args:
            progress: where it ended.
            ending: why.

        Raises:
            SaveFailedError: that save cannot be taken.
            SupersededError: a newer attempt of the run has started.
        """
        if self._drill is not None:
            self._evidence.conclude()
            self._drill.end(self._evidence.result)
        if self._attempt is None or self.is_over:
            return
        self._history.at(progress)
        self._evidence.conclude()
        # the end state must not take the place of the save at the last batch: a longer run goes on from that
        self._boundaries.settle(promoted=True)
        place = self._ranks.agree("the end state", None, lambda _: self._saves.next_place(progress.step))
        try:
            self._take(progress, "end", place, ending)
        except (UnsupportedStateError, SaveFailedError, OSError) as error:
            self._saves.failed(f"{type(error).__name__}: {error}", error, progress.step, strict=True)

    def _take(self, progress: Progress, reason: str, place: list[Any], ending: Ending | None = None) -> None:
        """Capture and stage now, write in the background."""
        header = self._header(progress, reason) | mark(self._beginning.fits.fit, ending)
        self._saves.take(self._framework.capture, header, place, progress)
        self._saved_at = progress.batch
        self._boundaries.taken(progress)
        self._evidence.saved(Slot(*place).name, progress)

    def _header(self, progress: Progress, reason: str) -> dict[str, Any]:
        metrics = self._framework.metrics
        self._best.look(progress, metrics)
        return {
            "progress": asdict(progress),
            "reason": reason,
            "metrics": metric_entries(metrics),
            "time": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="milliseconds"),
            "key": self._beginning.key,
            "config": to_json(self._beginning.config),
            "provenance": dict(self._beginning.provenance),
            "preamble": dict(self._framework.preamble()),
            "trained_s": round(self._history.trained_s, 6),
            "evidence": self._evidence.header,
            **self._beginning.origin_fact,
        }

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait until the save in flight is in the directory; with several ranks for this one's share, as far as it is.

        Raises:
            SaveFailedError: it failed; its cause is chained.
            SupersededError: a newer attempt of the run has started.
            TimeoutError: it was still being written.
        """
        self._boundaries.wait(timeout_s)

    def end(self, error: BaseException | None = None) -> None:
        """Training is over: wait until the save in flight is in the directory.

        Args:
            error: what ended it, None when it ran to its end. With one, a failed save is logged and not raised, and
                other ranks are waited for only as long as it takes them to hear of a refusal.

        In a process that the training has forked, and that leaves it by an exception (``sys.exit``), nothing is done:
        the run is not over, and the thread that writes is not there to be waited for.

        Raises:
            SaveFailedError: the last save failed.
            SupersededError: a newer attempt of the run has started.
        """
        if os.getpid() != self._pid:
            return
        try:
            self._boundaries.end(error)
        except BaseException as problem:  # the last save failed, which is what has ended the run
            error = error or problem
            raise
        finally:
            self._leaving.stop()
            self._saves.close()
            self._evidence.close()
            self._history.close(error)
