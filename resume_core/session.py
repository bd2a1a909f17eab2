"""The life of one attempt: every decision about saving, restoring and refusing is taken here.

A plugin calls, in this order::

    prepare()            only when loaders are needed earlier than that
    start()              candidates, config diff, read, apply         (nothing is loaded before the diff)
    begin(progress)      claim the attempt, first save of a new run   (right before the first batch)
    boundary(progress)   between two batches, again and again
    end(error)           wait for the save in flight
"""

from __future__ import annotations

import datetime
import logging
import os
import secrets
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from resume_core.capture.provenance import describe_code, provenance
from resume_core.capture.rng import derive
from resume_core.capture.runconfig import Difference, to_json
from resume_core.checkpointer import Checkpointer, Pending
from resume_core.errors import (
    CheckpointNotFoundError,
    ResumeError,
    SaveFailedError,
    SupersededError,
    UnsupportedStateError,
)
from resume_core.framework import Framework
from resume_core.policy import Changes, Keep, SaveEvery
from resume_core.restore import Restored, Restorer, read_key, restore_threads
from resume_core.schedule import Schedule
from resume_core.state import Progress, RunConfig
from resume_core.storage import (
    Attempt,
    CheckpointRef,
    CheckpointSlots,
    Lineage,
    open_store,
    prune,
)
from resume_core.writer import Writer

__all__ = ["Restored", "Session", "resume_mode"]

_KEY = 7  # the word that the run's key is derived from the seed with
_MAX_FAILURES = 3  # failed saves in a row that end training


def resume_mode(resume: str = "auto") -> str:
    """What to resume: the environment variable ``EXACT_RESUME`` wins over the argument.

    Returns:
        ``"auto"``, ``"must"``, ``"never"``, ``"off"`` (the plugin does nothing), or the name of a checkpoint.

    Raises:
        ValueError: an empty name.
    """
    mode = os.environ.get("EXACT_RESUME") or resume
    if not isinstance(mode, str) or not mode:
        raise ValueError(f'resume must be "auto", "must", "never" or the name of a checkpoint, got {mode!r}')
    return mode.lower() if mode.lower() in ("auto", "must", "never", "off") else mode


@dataclass
class _Health:
    """How the saves of this attempt went."""

    committed: bool = False
    num_failed_in_a_row: int = 0
    blocked_s: list[float] = field(default_factory=list)


class Session:
    """One attempt of a run.

    Args:
        framework: captures and applies.
        directory: the run's directory, local or any fsspec URL.
        resume: see `resume_mode`.
        save: when to save.
        keep: which checkpoints stay.
        changes: what may differ from the run that saved.
        storage_options: passed to fsspec.
        log: where messages go.

    Raises:
        ValueError: an unusable ``directory`` or ``resume``.
    """

    def __init__(
        self,
        framework: Framework,
        directory: str | os.PathLike[str],
        *,
        resume: str = "auto",
        save: SaveEvery | None = None,
        keep: Keep | None = None,
        changes: Changes | None = None,
        storage_options: Mapping[str, Any] | None = None,
        log: logging.Logger | None = None,
    ) -> None:
        self._framework = framework
        self._resume = resume_mode(resume)
        self._save, self._keep, self._changes = save or SaveEvery(), keep or Keep(), changes or Changes()
        self._log = log or logging.getLogger("exact_resume")
        self._store = open_store(os.fspath(directory), dict(storage_options or {}))
        self._lineage = Lineage(self._store)
        self._checkpointer = Checkpointer(self._store, rank=framework.rank)
        self._writer = Writer()
        self._schedule = Schedule(self._save)
        self._health = _Health()
        self._restored: Restored | None = None
        self._attempt: Attempt | None = None
        self._slots: CheckpointSlots | None = None
        self._in_flight = 0  # the step whose save is in flight
        self._requested = False
        self._checked_at: int | None = None
        self._key = 0
        self._start_s = time.monotonic()
        self._config: RunConfig = {}
        self._provenance: Mapping[str, Any] = {}

    # ---- restoring

    @property
    def has_checkpoint(self) -> bool:
        """Whether `start` will find something to go on from."""
        return next(iter(self._candidates()), None) is not None

    @property
    def blocked_s(self) -> float | None:
        """Median seconds that a save of this attempt kept training waiting; None before the first."""
        blocked = sorted(self._health.blocked_s)
        return blocked[len(blocked) // 2] if blocked else None

    def _candidates(self) -> Iterator[CheckpointRef]:
        if self._resume == "never":
            return
        named = None if self._resume in ("auto", "must") else self._resume
        yield from self._lineage.candidates(named)

    def prepare(self, seed: int | None) -> None:
        """The loaders are asked for before `start` can compare configurations: tell the framework the run's key.

        Args:
            seed: the user's seed, None when there is none.

        Raises:
            CheckpointNotFoundError: a checkpoint that was named is not there.
            OSError: the store cannot be read.
        """
        readable = (key for ref in self._candidates() if (key := read_key(self._store, ref)) is not None)
        self._framework.prepare(next(readable, self._fresh_key(seed)))

    def _fresh_key(self, seed: int | None) -> int:
        if not self._key:
            self._key = secrets.randbits(64) if seed is None else derive(seed, _KEY)
        return self._key

    def start(self, seed: int | None) -> Restored | None:
        """Find the newest valid checkpoint of the run's line, compare configurations, and apply it.

        Args:
            seed: the user's seed, None when there is none.

        Returns:
            What was restored, None for a new run.

        Raises:
            ConfigChangedError: the run differs; nothing was loaded.
            CheckpointNotFoundError: one was required or named and is not there.
            CorruptCheckpointError: checkpoints exist and none of them can be used.
            OSError: the store cannot be read.
        """
        self._refuse_ranks()
        self._start_s = time.monotonic()
        for error in self._lineage.damaged():
            self._log.warning("%s", error)
        restorer = Restorer(self._checkpointer, self._changes, self._describe, self._log)
        found = restorer.first_usable(self._candidates())
        if found is None:
            self._begin_anew(seed)
            return None
        self._restored, state = found
        self._warn_of_newer(self._restored.ref)
        self._key = self._restored.key
        self._framework.apply(state)
        restore_threads(self._restored.accepted, self._log)
        return self._restored

    def _warn_of_newer(self, ref: CheckpointRef) -> None:
        """A name that stays in a script brings every restart back to it."""
        if self._resume in ("auto", "must"):
            return
        newest = next(iter(self._lineage.candidates()), None)
        if newest is not None and newest.path != ref.path:
            self._log.warning(
                "resume=%r goes back to %s although %s is there; take the name out to go on from the newest one",
                self._resume,
                ref.path,
                newest.path,
            )

    def _begin_anew(self, seed: int | None) -> None:
        if self._resume == "must":
            raise CheckpointNotFoundError(
                f'resume="must", but {self._store.url} holds no checkpoint to go on from. Check the directory, '
                'or start the run with resume="auto".',
                path=self._store.url,
            )
        self._describe(self._fresh_key(seed))

    def _refuse_ranks(self) -> None:
        if self._framework.world_size > 1:
            raise ResumeError(
                f"{self._framework.world_size} processes train together; this version resumes a single process only"
            )

    def _describe(self, key: int) -> RunConfig:
        """The run's config, read once, before anything is loaded."""
        self._framework.prepare(key)
        if not self._config:
            self._provenance = provenance()
            self._config = {**self._framework.describe(), **describe_code(self._provenance)}
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
        restored = self._restored
        accepted = [d.as_dict() for d in _decisive(restored)] if restored else []
        info = {"provenance": dict(self._provenance), "accepted": accepted, "key": self._key}
        newest = None if self._resume == "never" else self._lineage.newest()
        self._attempt = self._lineage.claim(
            # an attempt that found nothing to restore still belongs to the run, so that its leftovers are pruned
            parent=newest.name if newest and restored is None else None,
            restored_from=restored.ref if restored else None,
            info=info,
        )
        self._slots = CheckpointSlots(self._store, self._attempt.name)
        self._schedule.restart(progress)
        if restored is not None:
            self._announce(restored)
        else:
            self._log.info("a new run: %s in %s", self._attempt.name, self._store.url)
            if self._save.at_start:
                self._take(progress, "start")
        self._checked_at = progress.step

    def _announce(self, restored: Restored) -> None:
        assert self._attempt is not None
        self._log.info(
            "resumed at step %d, batch %d, epoch %d from %s (%s) in %.1f s; this is %s",
            restored.progress.step,
            restored.progress.batch,
            restored.progress.epoch,
            restored.ref.path,
            self._store.url,
            time.monotonic() - self._start_s,
            self._attempt.name,
        )

    def boundary(self, progress: Progress) -> bool:
        """A batch and everything that belongs to it is done: save if it is time.

        Returns:
            True when training should stop.

        Raises:
            SaveFailedError: the first save of a new run failed, or three saves in a row.
            SupersededError: a newer attempt of the run has started.
            UnsupportedStateError: state that first exists after the first step cannot be saved.
        """
        if self._attempt is None:
            return False
        self._settle()
        self._requested = self._requested or self._schedule.due(progress)
        if self._checked_at is not None and progress.step > self._checked_at:
            # moments of an optimizer exist only after its first step: refuse now rather than hours later
            self._checkpointer.check(self._framework.capture())
            self._checked_at = None
        if self._requested and not progress.in_window and not self._writer.busy:
            self._try(progress)
        return False

    def _try(self, progress: Progress) -> None:
        try:
            self._take(progress, "schedule")
        except (UnsupportedStateError, OSError) as error:
            self._requested = False
            self._schedule.restart(progress)
            self._failed(error, progress.step, strict=False)

    def _take(self, progress: Progress, reason: str) -> None:
        """Capture and stage now, write in the background."""
        assert self._attempt is not None
        assert self._slots is not None
        start = time.perf_counter()
        pending = self._checkpointer.stage(self._framework.capture(), self._header(progress, reason))
        slot, attempt = self._slots.take(progress.step), self._attempt
        self._requested, self._in_flight = False, progress.step
        self._schedule.restart(progress)
        self._writer.submit(lambda: self._write(pending, slot, attempt))
        self._health.blocked_s.append(time.perf_counter() - start)

    def _header(self, progress: Progress, reason: str) -> dict[str, Any]:
        return {
            "progress": asdict(progress),
            "reason": reason,
            "key": self._key,
            "config": to_json(self._config),
            "provenance": dict(self._provenance),
            "time": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        }

    def _write(self, pending: Pending, slot: Any, attempt: Attempt) -> None:
        manifest = pending.write(self._store, slot, still_newest=lambda: self._lineage.check_newest(attempt))
        self._log.debug("saved %s, %d bytes", manifest.ref.path, pending.size_bytes)
        for problem in prune(self._lineage, self._keep, attempt).failures:
            self._log.warning("an old checkpoint could not be deleted: %s", problem)

    def _settle(self, *, strict: bool = False) -> None:
        """Take the outcome of the save that ended since the last boundary; ``strict`` raises any failure."""
        ended, error = self._writer.take_outcome()
        if isinstance(error, SupersededError):
            raise error
        if error is not None:
            self._failed(error, self._in_flight, strict=strict)
        elif ended:
            self._health.committed = True
            self._health.num_failed_in_a_row = 0

    def _failed(self, error: BaseException, step: int, *, strict: bool) -> None:
        """Say that a save failed; raise when training should not go on like that."""
        self._health.num_failed_in_a_row += 1
        self._schedule.failed(self._health.num_failed_in_a_row)
        unprotected = not self._health.committed and self._restored is None
        kept = "no checkpoint exists yet" if unprotected else "older checkpoints are intact"
        message = f"the save at step {step} failed ({type(error).__name__}: {error}); {kept}"
        self._log.error("%s", message)
        if strict or unprotected or self._health.num_failed_in_a_row >= _MAX_FAILURES:
            raise SaveFailedError(message, path=self._store.url, step=step) from error

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait for the save in flight.

        Raises:
            SaveFailedError: it failed; its cause is chained.
            SupersededError: a newer attempt of the run has started.
            TimeoutError: it was still being written.
        """
        self._writer.wait(timeout_s)
        self._settle(strict=True)

    def end(self, error: BaseException | None = None) -> None:
        """Training is over: wait for the save in flight.

        Args:
            error: what ended it, None when it ran to its end. With one, a failed save is logged and not raised.

        Raises:
            SaveFailedError: the last save failed.
        """
        try:
            self.wait()
        except ResumeError:
            if error is None:
                raise


def _decisive(restored: Restored) -> tuple[Difference, ...]:
    return restored.accepted.allowed + restored.accepted.warned
