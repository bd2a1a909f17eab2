"""Runs without a directory: what the framework's own checkpoints lack travels in them, as one entry.

`EmbeddedSession` takes the decisions of such a run. It is used like `resume_core.session.Session`, which starts from an
entry as well, when its directory is still empty.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any

from resume_core.accepted import report, restore_threads, warn_of_names
from resume_core.capture.chosen import describe_chosen
from resume_core.capture.provenance import provenance
from resume_core.capture.rng import derive
from resume_core.capture.runconfig import Accepted, check
from resume_core.entry import ENTRY, Entry, Incomplete, decode
from resume_core.errors import ResumeError, UnsupportedStateError
from resume_core.evidence import Observer
from resume_core.framework import Framework
from resume_core.origin import ORIGIN
from resume_core.policy import Changes
from resume_core.state import Ahead, Ending, Progress, RunConfig, State

__all__ = ["EmbeddedSession", "Given", "adopt", "look_for_entry", "new_key"]

_KEY = 7  # the word that the run's key is derived from the seed with
_LOST = (
    "not exact from here on: the order and augmentation of samples, random draws such as dropout, averages of the "
    "epoch so far, gradients of a half-filled window, and hooks and a validation that were still due"
)


@dataclass(frozen=True)
class Given:
    """A checkpoint of the framework's own that a run starts from, with what it lacks.

    Attributes:
        path: its file.
        entry: what it carried.
        state: all of it, to be applied.
    """

    path: str
    entry: Entry
    state: State


def look_for_entry(
    checkpoint: MutableMapping[str, Any], path: str, log: logging.Logger, *, num_ranks: int = 1
) -> Entry | None:
    """Take the entry out of a checkpoint; without a usable one, say what will not be exact.

    Args:
        checkpoint: as the framework has loaded it.
        path: its file, for messages.
        log: where messages go.
        num_ranks: processes that train together; an entry holds the state of a single one.

    Raises:
        CorruptCheckpointError: the entry is damaged, or of a format that this version cannot read.
        UnsupportedStateError: a leaf of the user's own that is not registered in this process.
    """
    raw = checkpoint.pop(ENTRY, None)
    found = Incomplete("without ResumeCallback") if raw is None else decode(raw, path)
    if isinstance(found, Entry):
        if num_ranks == 1:
            return found
        found = Incomplete("by a single process")
    log.warning("%s was saved %s, so it is loaded as Lightning alone would: %s", path, found.reason, _LOST)
    return None


def new_key(seed: int | None) -> int:
    """The key of a new run: from the user's seed, or from entropy when there is none."""
    return secrets.randbits(64) if seed is None else derive(seed, _KEY)


def adopt(
    given: Given, framework: Framework, changes: Changes, describe: Callable[[int], RunConfig], log: logging.Logger
) -> Accepted:
    """Compare this run with the one that wrote a checkpoint, and apply it; with several ranks on each alike.

    Raises:
        ConfigChangedError: the run differs, on any rank; nothing was loaded.
    """
    entry = given.entry
    current = describe(entry.key)
    accepted = framework.ranks.together(
        "the comparison", lambda: check(entry.config, current, changes, path=given.path, step=entry.progress.step)
    )
    warn_of_names(changes, {*entry.config, *current, ORIGIN}, log)
    framework.apply(given.state)
    report(accepted, log)
    restore_threads(accepted, log)
    progress = entry.progress
    place = (progress.step, progress.batch, progress.epoch)
    log.info("resumed at step %d, batch %d, epoch %d from %s", *place, given.path)
    return accepted


class EmbeddedSession:
    """One attempt of a run without a directory.

    Args:
        framework: captures and applies.
        changes: what may differ from the run that saved.
        log: where messages go.
    """

    blocked_s = None
    """Saving is the framework's own affair."""
    is_over = False
    """So is whether anything is left to be trained."""
    observer = Observer()
    """Nothing is recorded."""

    def __init__(self, framework: Framework, *, changes: Changes | None = None, log: logging.Logger) -> None:
        self._framework = framework
        self._changes = changes or Changes()
        self._log = log
        self._given: Given | None = None
        self._key: int | None = None
        self._config: RunConfig = {}
        self._warned: set[str] = set()

    # ---- restoring

    def starts_from(self, path: str | os.PathLike[str], *, named: bool) -> bool:
        """A checkpoint that the user names is always the one to go on from."""
        return True

    def give(self, given: Given) -> None:
        """The checkpoint to go on from was read, and carried an entry."""
        self._given = given

    def preamble(self) -> Mapping[str, Any]:
        """Nothing is known before the framework has read its checkpoint."""
        return {}

    def reconfigured(self) -> None:
        """The framework changed what decides a new run, by tuning it."""
        if self._key is not None:
            self._config = {}
            self._describe(self._key)

    def prepare(self, seed: int | None) -> None:
        """The loaders are asked for before `start`: tell the framework the run's key."""
        self._framework.prepare(self._run_key(seed))

    def _run_key(self, seed: int | None) -> int:
        if self._given is not None:
            self._key = self._given.entry.key
        elif self._key is None:
            self._key = int(self._framework.ranks.share("the key", new_key(seed)))
        return self._key

    def start(self, seed: int | None) -> None:
        """Compare configurations and apply the checkpoint, if one was given.

        Args:
            seed: the user's seed, None when there is none.

        Raises:
            ConfigChangedError: the run differs; nothing was loaded.
            ResumeError: several processes train together.
        """
        self._check_ranks()
        key = self._run_key(seed)
        if self._given is None:
            self._describe(key)
            return
        given, self._given = self._given, None  # its tensors are not needed twice
        adopt(given, self._framework, self._changes, self._describe, self._log)

    def _check_ranks(self) -> None:
        num_ranks = self._framework.ranks.size
        if num_ranks > 1:
            raise ResumeError(
                f"{num_ranks} processes train together, and a checkpoint of the framework's own holds the state of "
                "one: give ResumeCallback a directory that all of them share"
            )

    def _describe(self, key: int) -> RunConfig:
        self._framework.prepare(key)
        if not self._config:
            self._config = {**self._framework.describe(), **describe_chosen(self._changes, provenance())}
        return self._config

    # ---- running

    def begin(self, progress: Progress) -> None:
        """The first batch is about to be fetched."""

    def pause(self, kind: str) -> contextlib.AbstractContextManager[None]:
        """See `Session.pause`."""
        return contextlib.nullcontext()

    def boundary(self, progress: Progress, ahead: Ahead = tuple) -> bool:
        """A batch and everything that belongs to it is done; nothing is saved here."""
        return False

    def stranded(self, progress: Progress, error: BaseException) -> None:
        """An exception came while a batch was fetched; nothing is saved here."""

    def finish(self, progress: Progress, ending: Ending) -> None:
        """Everything of the fit is done; nothing is saved here."""

    def end(self, error: BaseException | None = None) -> None:
        """Training is over."""

    # ---- saving

    def carry(self, progress: Progress, point: Mapping[str, Any], pieces: Mapping[str, Any]) -> dict[str, Any]:
        """The entry for a checkpoint that the framework is writing.

        Args:
            progress: where training stands.
            point: see `Entry`.
            pieces: see `Entry`.
        """
        if self._key is None:
            return self.carry_none("before training has begun")
        try:
            return self._entry(self._key, progress, point, pieces).encode()
        except UnsupportedStateError as error:
            return self._unsupported(error).encode()

    def carry_none(self, reason: str, advice: str = "") -> dict[str, Any]:
        """The entry of a checkpoint that is taken where nothing can be exact; said once for each reason."""
        return self._incomplete(reason, advice).encode()

    def _entry(self, key: int, progress: Progress, point: Mapping[str, Any], pieces: Mapping[str, Any]) -> Entry:
        return Entry(key, progress, self._config, point, pieces)

    def _unsupported(self, error: UnsupportedStateError) -> Incomplete:
        return self._incomplete(f"with something in {error.path} that no checkpoint can hold ({error})")

    def _incomplete(self, reason: str, advice: str = "") -> Incomplete:
        if reason not in self._warned:
            self._warned.add(reason)
            self._log.warning("a checkpoint saved %s cannot be resumed exactly. %s", reason, advice)
        return Incomplete(reason)
