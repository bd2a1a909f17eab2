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
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, replace
from typing import Any, NoReturn

from resume_core.boundaries import Boundaries
from resume_core.candidates import first_preamble, line, open_lineage, resume_mode
from resume_core.capture.chosen import describe_chosen
from resume_core.capture.provenance import provenance
from resume_core.capture.rng import derive
from resume_core.capture.runconfig import Accepted, to_json
from resume_core.checkpointer import Checkpointer
from resume_core.claims import claim
from resume_core.drill import of_environment
from resume_core.embedded import Given, adopt, new_key
from resume_core.errors import (
    CheckpointNotFoundError,
    CorruptCheckpointError,
    DivergedError,
    ResumeError,
    SaveFailedError,
    UnsupportedStateError,
)
from resume_core.evidence import Evidence, Observer
from resume_core.finish import Fits, finished_fit, mark
from resume_core.framework import Framework
from resume_core.goodput import account
from resume_core.history import History
from resume_core.leaving import Leaving
from resume_core.metrics import BestWatch, metric_entries
from resume_core.origin import ORIGIN, Origin, check_origin, find_origin
from resume_core.policy import Changes, Check, Keep, Preemption, SaveEvery, Watch
from resume_core.restore import (
    Restored,
    Restorer,
    consequences,
    is_same_machine,
    read_key,
    read_origin,
    restore_threads,
)
from resume_core.saves import Saves
from resume_core.schedule import Cadence, Schedule
from resume_core.scratch import admit
from resume_core.state import Ending, Progress, RunConfig, State
from resume_core.storage import Attempt, CheckpointRef, Slot

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
        self._save, self._keep, self._changes = save or SaveEvery(), keep or Keep(), changes or Changes()
        self._log = log or logging.getLogger("exact_resume")
        self._ranks = framework.ranks
        self._lineage = open_lineage(directory, scratch, storage_options)
        self._store = self._lineage.store
        self._checkpointer = Checkpointer(self._store, self._ranks)
        self._seen = self._lineage  # as it was when candidates were listed last
        self._fits = Fits(fit, framework.limits, lambda ref: self._seen.read_manifest(ref))
        # each asks the other, and not this session: a history lives until the interpreter ends, and a model must not
        history = self._history = History(self._log, lambda: leaving.received)
        self._saves = Saves(self._checkpointer, self._lineage, self._keep, self._log, self._history, pin=finished_fit)
        self._cadence = Cadence(self._save, self._history, self._log)
        self._best = BestWatch(self._keep, self._log)
        self._drill = of_environment(self._store.url, is_first=self._ranks.is_first)
        check = check or Check()
        if self._drill is not None:
            check = replace(check, steps=check.steps or Check.steps, on_mismatch="warn")
        parts = (self._ranks, self._log, framework.vitals, self._history.loss)
        self._evidence = Evidence(check, watch or Watch(), *parts)
        leaving = self._leaving = Leaving(
            preemption or Preemption(), self._ranks, self._lineage.tiers, self._log, lambda: history.slowest_s
        )
        self._boundaries = Boundaries(
            *(self._ranks, Schedule(self._save, self._cadence), self._saves),
            *(self._leaving.asked, self._leaving.pauses_s, self._leaving.early),
            *(lambda: self._evidence.alarm, lambda: self._evidence.holds_saves),
        )
        self._saved_at: int | None = None  # the batch of the newest save
        self._boundary: Progress | None = None  # the last
        self._is_stranded = False
        self._restored: Restored | None = None
        self._origin: Origin | None = None
        self._given: Given | None = None
        self._accepted = self._passed_over = Accepted()
        self.is_over = False
        """Whether the fit had come to its end before: nothing is left to be trained. Known after `start`."""
        self._attempt: Attempt | None = None
        self._checked_at: int | None = None
        self._key = 0
        self._start_s = time.monotonic()
        self._config: RunConfig = {}
        self._provenance: Mapping[str, Any] = {}

    # ---- restoring

    def starts_from(self, path: str | os.PathLike[str], *, named: bool) -> bool:
        """Whether a checkpoint of the framework's own starts this run: only as long as the run has none.

        Args:
            path: its file.
            named: the user named this file, rather than whichever is the last or the best.

        Raises:
            ConfigChangedError: the run has checkpoints, and it started from another file; nothing was loaded.
        """
        text = os.fspath(path)
        found = self._ranks.agree("the checkpoint to start from", None, lambda _: self._origin_to_load(text, named))
        self._origin = Origin.from_dict(found)
        if found is None:
            self._log.info("ckpt_path=%r is not loaded: the run goes on from its own newest checkpoint", text)
        return found is not None

    def _origin_to_load(self, path: str, named: bool) -> dict[str, Any] | None:
        candidates = list(self._candidates())
        if not candidates:
            return find_origin(path).as_dict()
        for ref in candidates if named else ():
            with contextlib.suppress(CorruptCheckpointError, CheckpointNotFoundError):  # `start` says so
                origin = read_origin(self._seen, ref)
                self._passed_over = check_origin(origin, path, self._changes, self._log, run=self._store.url)
                break
        return None

    def give(self, given: Given) -> None:
        """The checkpoint that starts this run was read, and carried what the framework does not save."""
        self._given = given

    @property
    def has_checkpoints(self) -> bool:
        """Whether there is something in its directory to go on from; asked on each rank alike."""
        found = self._ranks.agree("what there is", None, lambda _: next(self._candidates(), None) is not None)
        return bool(found)

    @property
    def has_restored(self) -> bool:
        """Whether the run goes on from a checkpoint in its directory."""
        return self._restored is not None

    @property
    def identity(self) -> tuple[int, RunConfig]:
        """The run's key and config, once it has started."""
        return self._key, self._config

    @property
    def observer(self) -> Observer:
        """To be told of batches, losses and gradients."""
        return self._evidence.observer

    @property
    def blocked_s(self) -> float | None:
        """Median seconds that a save of this attempt kept training waiting; None before the first."""
        return self._history.blocked_s

    def _candidates(self) -> Iterator[CheckpointRef]:
        self._seen = self._lineage.glance()
        return self._offered()

    def _offered(self) -> Iterator[CheckpointRef]:
        if self._resume == "never" and not self._fits.fit:
            return
        yield from self._fits.choose(line(self._seen, self._resume))
        if self._named is not None and self._fits.later is not None:  # what comes before the one that was named
            yield from self._fits.choose(self._seen.line(self._seen.find(self._named).attempt))

    @property
    def _named(self) -> str | None:
        return None if self._resume in ("auto", "must", "never") else self._resume

    def preamble(self) -> Mapping[str, Any]:
        """What the newest checkpoint tells the framework before `start`; empty for a new run.

        Raises:
            CheckpointNotFoundError: a checkpoint that was named is not there.
            OSError: the store cannot be read.
        """

        def look(_: list[Any]) -> dict[str, Any]:
            candidates = self._candidates()
            return dict(first_preamble(self._seen, candidates))

        return dict(self._ranks.agree("the preamble", None, look))

    def reconfigured(self) -> None:
        """The framework changed what decides a new run, by tuning it: compare later attempts with what it is now."""
        self._config = {}
        self._describe(self._key)

    def prepare(self, seed: int | None) -> None:
        """The loaders are asked for before `start` can compare configurations: tell the framework the run's key.

        Args:
            seed: the user's seed, None when there is none.

        Raises:
            CheckpointNotFoundError: a checkpoint that was named is not there.
            OSError: the store cannot be read.
        """

        def choose(_: list[Any]) -> int:
            readable = (key for ref in self._candidates() if (key := read_key(self._seen, ref)) is not None)
            return next(readable, None) or self._new_key(seed)

        self._key = self._ranks.agree("the key", None, choose)
        self._framework.prepare(self._key)

    def _new_key(self, seed: int | None) -> int:
        if self._given is not None:
            return self._given.entry.key
        origin = self._fits.origin
        before = None if self._key or origin is None else read_key(self._seen, origin)
        if before is not None:  # a later fit of a run has randomness of its own, of the same root
            return derive(before, self._fits.fit)
        return self._key or new_key(seed)

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
        self._leaving.watch()
        for error in self._lineage.glance().damaged() if self._ranks.is_first else ():
            self._log.warning("%s", error)
        parts = (self._checkpointer, self._lineage, self._changes, self._describe, self._log, self._ranks)
        found = Restorer(*parts, self._framework.live_weights).first_usable(self._candidates)
        self._fits.adopt(self._ranks.share("the fits", self._fits.seen()))
        if found is None:
            self.is_over = self._fits.is_over(None, self._store.url, self._log)
            if not self.is_over:
                self._begin_anew(seed)
            return None
        self._restored, state = found
        self._saved_at = self._restored.progress.batch
        self._warn_of_newer(self._restored.ref)
        self._key, self._saves.is_protected = self._restored.key, True
        self._checkpointer.reserve(self._restored.size_bytes)
        self._origin = self._restored.origin
        self._accepted = self._restored.accepted
        self._expect(self._restored, state)
        self._framework.apply(state)
        restore_threads(self._accepted, self._log)
        self.is_over = self._fits.is_over(self._restored, self._store.url, self._log)
        if self.is_over and self._drill is not None and self._fits.later is None:
            self._drill.end({"verdict": "over", "checkpoint": self._restored.ref.path})
        if self.is_over and not self._ranks.share("the end state", self._restored.is_promoted):
            self._open(self._restored.progress)  # `end` waits for it
        return self._restored

    def _expect(self, restored: Restored, state: State) -> None:
        """What was read, and what was recorded behind it, is what the first batches are compared with."""
        changed = ", ".join(consequences(restored.accepted))
        self._evidence.resume(
            *(self._store, restored.ref, restored.progress, restored.evidence),
            digest=restored.digest,
            is_same_machine=is_same_machine(restored.accepted),
            reason=f"the changes that were accepted ({changed})" if changed else "",
        )
        self._evidence.compare_with(lambda: self._framework.parts(state), lambda: self._framework.parts(None))

    def _warn_of_newer(self, ref: CheckpointRef) -> None:
        """A name that stays in a script brings every restart back to it."""
        if self._resume in ("auto", "must") or not self._ranks.is_first:
            return
        newest = next(iter(self._lineage.glance().candidates()), None)
        if newest is not None and newest.path != ref.path:
            self._log.warning(
                "resume=%r goes back to %s although %s is there; take the name out to go on from the newest one",
                self._resume,
                ref.path,
                newest.path,
            )

    def _begin_anew(self, seed: int | None) -> None:
        self._fits.refuse_lost_end(self._store.url)
        if self._resume == "must" and self._fits.origin is None:
            raise CheckpointNotFoundError(
                f'resume="must", but {self._store.url} holds no checkpoint to go on from. Check the directory, '
                'or start the run with resume="auto".',
                path=self._store.url,
            )
        self._key = self._ranks.share("the key", self._new_key(seed))
        given, self._given = self._given, None  # its tensors are not needed twice
        if given is None:
            self._describe(self._key)
        else:
            self._accepted = adopt(given, self._framework, self._changes, self._describe, self._log)
        if self._ranks.is_first:
            self._checkpointer.reserve(self._framework.weights_bytes)

    def _describe(self, key: int) -> RunConfig:
        """The run's config, read once, before anything is loaded."""
        self._framework.prepare(key)
        if not self._config:
            self._provenance = provenance()
            chosen = describe_chosen(self._changes, self._provenance)
            self._config = {**self._framework.describe(), **chosen}
        return self._config

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
        self._history.begin(progress, resumed=self._restored is not None)
        if self._restored is not None:
            self._announce(self._restored, attempt)
        else:
            what = f"fit {self._fits.fit} of this script begins" if self._fits.fit else "a new run"
            self._log.info("%s: %s in %s", what, attempt.name, self._store.url)
            if self._save.at_start:
                place = self._ranks.agree("the start", None, lambda _: self._saves.next_place(progress.step))
                self._take(progress, "start", place)
        self._checked_at, self._boundary = progress.step, progress
        if (why := self._leaving.agreed()) is not None:
            self._leave(progress, why)

    def _open(self, progress: Progress) -> Attempt:
        """Claim the attempt. What is on the scratch alone becomes its first checkpoint."""
        restored = self._restored
        accepted = self._passed_over.record() + self._accepted.record()
        info = {"provenance": dict(self._provenance), "accepted": accepted, "key": self._key}
        info |= {"keep": asdict(self._keep), "restored_digest": restored and restored.digest, **self._origin_fact}
        # a fit after another one goes on from live objects that are what that one had saved at its end
        origin = restored.ref if restored else self._fits.origin
        attempt = claim(self._lineage, self._ranks, origin=origin, info=info, anew=self._resume == "never")
        tiers, size_bytes = self._lineage.tiers, restored.all_bytes if restored else self._framework.weights_bytes
        scratch = admit(tiers, attempt, size_bytes, self._ranks, self._log)
        self._saves.open(attempt, scratch, is_first=self._ranks.is_first)
        if self._ranks.is_first:
            self._open_history(attempt, progress if restored is not None else None)
        if restored is not None and not self._ranks.share("the tiers", restored.is_promoted):
            place = self._ranks.agree("the copy", None, lambda _: self._saves.next_place(progress.step))
            self._saves.adopt(restored.ref, place, progress)
        self._attempt = attempt
        return attempt

    def _open_history(self, attempt: Attempt, resumed: Progress | None) -> None:
        """On rank 0. What earlier attempts have met with counts for the cadence, and for no more than that."""
        self._history.open(self._store, attempt, resumed)
        if self._save.mtbf_hours is None or attempt.parent is None:
            return
        try:
            found = account(self._lineage.glance(), attempt.name, self._log)
        except (OSError, ResumeError) as error:
            self._log.info("how often this run was interrupted before is not known: %s", error)
            return
        self._cadence.observe(found.interruptions, found.up_s)

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

    def boundary(self, progress: Progress, ahead: Collection[str] = ()) -> bool:
        """A batch and everything that belongs to it is done: save if it is time.

        Args:
            progress: where training stands.
            ahead: kinds of `pause` that come before the next boundary, as far as that is known; on each rank alike.

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
            place = self._boundaries.meet(progress)
            if self._boundaries.alarm is not None:
                raise DivergedError(f"{self._boundaries.alarm}. Nothing was saved there.", step=progress.step)
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
        same = progress == self._boundary and not progress.ends_epoch and self._ranks.size == 1
        if self._attempt is None or self._is_stranded or not same or self._saved_at == progress.batch:
            return
        if self._evidence.holds_saves:
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
        header = self._header(progress, reason) | mark(self._fits.fit, ending)
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
            "time": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            "key": self._key,
            "config": to_json(self._config),
            "provenance": dict(self._provenance),
            "preamble": dict(self._framework.preamble()),
            "trained_s": round(self._history.trained_s, 6),
            "evidence": self._evidence.header,
            **self._origin_fact,
        }

    @property
    def _origin_fact(self) -> dict[str, Any]:
        return {} if self._origin is None else {ORIGIN: self._origin.as_dict()}

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

        Raises:
            SaveFailedError: the last save failed.
            SupersededError: a newer attempt of the run has started.
        """
        try:
            self._boundaries.end(error)
        except BaseException as problem:  # the last save failed, which is what has ended the run
            error = error or problem
            raise
        finally:
            self._leaving.stop()
            self._evidence.close()
            self._history.close(error)
