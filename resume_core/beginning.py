"""Where a run begins: what there is to go on from, the run's key, and its configuration."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator, Mapping
from typing import Any

from resume_core.accepted import warn_of_names
from resume_core.candidates import asked, first_preamble, line, named_checkpoint
from resume_core.capture.chosen import describe_chosen
from resume_core.capture.provenance import provenance
from resume_core.capture.rng import derive
from resume_core.capture.runconfig import Accepted
from resume_core.checkpointer import Checkpointer
from resume_core.drill import is_rehearsal
from resume_core.embedded import Given, adopt, new_key
from resume_core.errors import CheckpointNotFoundError, CorruptCheckpointError
from resume_core.finish import Fits
from resume_core.framework import Framework
from resume_core.naming import resolve
from resume_core.origin import ORIGIN, Origin, check_origin, find_origin
from resume_core.policy import Changes
from resume_core.restore import Restored, Restorer
from resume_core.saved_header import read_key, read_origin
from resume_core.state import RunConfig, State
from resume_core.storage import CheckpointRef, Lineage
from resume_core.storage.missing_manifests import newest_missing

__all__ = ["Beginning"]


class Beginning:
    """That of one attempt. Nothing of it is written.

    Args:
        framework: asked for the configuration, and told the key.
        lineage: of the run.
        checkpointer: reads.
        resume: see `resume_core.candidates.resume_mode`.
        changes: what may differ from the run that saved.
        fit: the place of this fit among those that the script makes in this directory, from 0.
        log: where messages go.

    Attributes:
        fits: of the script.
        key: the run's root of all data randomness.
        config: what decides the run.
        provenance: of this process.
        accepted: differences from the checkpoint that it goes on from.
        passed_over: that the user names another checkpoint of the framework's own than the run had started from.
        restored: that checkpoint; None for a new run.
    """

    def __init__(
        self,
        framework: Framework,
        lineage: Lineage,
        checkpointer: Checkpointer,
        *,
        resume: str,
        changes: Changes,
        fit: int,
        log: logging.Logger,
    ) -> None:
        self._framework, self._ranks, self._log = framework, framework.ranks, log
        self._lineage, self._store, self._checkpointer = lineage, lineage.store, checkpointer
        self._resume, self._changes = resume, changes
        self._seen = lineage  # as it was when candidates were listed last
        self.fits = Fits(fit, framework.limits, lambda ref: self._seen.read_manifest(ref))
        self._origin: Origin | None = None
        self._given: Given | None = None
        self.key = 0
        self.config: RunConfig = {}
        self.provenance: Mapping[str, Any] = {}
        self.accepted = self.passed_over = Accepted()
        self.restored: Restored | None = None

    def starts_from(self, path: str | os.PathLike[str], *, named: bool) -> bool:
        """Whether a checkpoint of the framework's own starts this run: only as long as the run has none.

        Args:
            path: its file.
            named: the user named this file, rather than whichever is the last or the best.

        Raises:
            ConfigChangedError: the run has checkpoints, and it started from another file; nothing was loaded.
        """
        text = os.fspath(path)
        found = self._ranks.agree(
            "the checkpoint to start from", None, lambda _: self._origin_to_load(text, named=named)
        )
        self._origin = Origin.from_dict(found)
        if found is None:
            self._log.info("ckpt_path=%r is not loaded: the run goes on from its own newest checkpoint", text)
        return found is not None

    def _origin_to_load(self, path: str, *, named: bool) -> dict[str, Any] | None:
        candidates = list(self._candidates())
        if not candidates:
            return find_origin(path).as_dict()
        for ref in candidates if named else ():
            with contextlib.suppress(CorruptCheckpointError, CheckpointNotFoundError):  # `start` says so
                origin = read_origin(self._seen, ref)
                self.passed_over = check_origin(origin, path, self._changes, self._log, run=self._store.url)
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

    def _candidates(self) -> Iterator[CheckpointRef]:
        self._seen = self._lineage.glance()
        return self._offered()

    def _offered(self) -> Iterator[CheckpointRef]:
        if self._resume == "never" and not self.fits.fit:
            return
        yield from self.fits.choose(line(self._seen, self._resume))
        if self._named is not None and self.fits.later is not None:  # what comes before the one that was named
            yield from self.fits.choose(self._seen.line(resolve(self._seen, self._named).attempt))

    @property
    def _named(self) -> str | None:
        return named_checkpoint(self._resume)

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
        self.config = {}
        self._describe(self.key)

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

        self.key = self._ranks.agree("the key", None, choose)
        self._framework.prepare(self.key)

    def _new_key(self, seed: int | None) -> int:
        if self._given is not None:
            return self._given.entry.key
        origin = self.fits.origin
        before = None if self.key or origin is None else read_key(self._seen, origin)
        if before is not None:  # a later fit of a run has randomness of its own, of the same root
            return derive(before, self.fits.fit)
        return self.key or new_key(seed)

    def find(self) -> tuple[Restored, State] | None:
        """Find the newest valid checkpoint of the run's line, compare configurations, and read it.

        Returns:
            None for a new run, or for a fit that is over; see `begin_anew` for the one.

        Raises:
            ConfigChangedError: the run differs; nothing was loaded.
            CheckpointNotFoundError: one was required or named and is not there, or cannot be gone on from.
            CorruptCheckpointError: checkpoints exist and none of them can be used.
            OSError: the store cannot be read.
        """
        for error in self._lineage.glance().damaged() if self._ranks.is_first else ():
            self._log.warning("%s", error)
        restorer = Restorer(
            self._checkpointer,
            self._lineage,
            self._changes,
            describe=self._describe,
            live=self._framework.live_weights,
            ranks=self._ranks,
            log=self._log,
        )
        found = restorer.first_usable(self._candidates)
        self.fits.adopt(self._ranks.share("the fits", self.fits.seen()))
        if found is not None:
            self.restored, _ = found
            self._warn_of_newer(self.restored.ref)
            self._warn_of_missing(self.restored.ref)
            self.key, self.accepted, self._origin = self.restored.key, self.restored.accepted, self.restored.origin
            self._checkpointer.reserve(self.restored.size_bytes)
        return found

    def _warn_of_newer(self, ref: CheckpointRef) -> None:
        """A name that stays in a script brings every restart back to it; a rehearsal was given it for once."""
        if self._resume in ("auto", "must") or not self._ranks.is_first or is_rehearsal():
            return
        newest = next(iter(self._lineage.glance().candidates()), None)
        if newest is not None and newest.path != ref.path:
            self._log.warning(
                "%s goes back to %s although %s is there; take the name out to go on from the newest one",
                asked(self._resume),
                ref.path,
                newest.path,
            )

    def _warn_of_missing(self, ref: CheckpointRef) -> None:
        """What was left half-written is passed over in silence; a checkpoint that was committed is not."""
        if self._resume in ("auto", "must") and self._ranks.is_first:
            for missing in newest_missing(self._lineage, self._seen):
                self._log.warning(
                    "%s The run goes on from %s instead; what is left there is deleted with all that is half-written.",
                    missing,
                    ref.path,
                )

    def _refuse_missing(self) -> None:
        """A run that had made progress never starts anew silently, not even where nothing of it can be read."""
        if self._resume == "never":
            return

        def look(_: list[Any]) -> str:
            if next(line(self._seen, "auto"), None) is not None:  # those of other fits
                return ""
            return " ".join(map(str, newest_missing(self._lineage, self._seen)))

        if damage := self._ranks.agree("what has lost its manifest", None, look):
            raise CorruptCheckpointError(
                f"no checkpoint of this run's line in {self._store.url} can be used: {damage} "
                'Restore the files, or start anew on purpose with resume="never".',
                path=self._store.url,
            )

    def begin_anew(self, seed: int | None) -> None:
        """There is nothing to go on from: a new run, or a new fit of one.

        Args:
            seed: the user's seed, None when there is none.

        Raises:
            CheckpointNotFoundError: a checkpoint was required.
            CorruptCheckpointError: there were checkpoints, and all of them have lost their manifests.
        """
        self._refuse_missing()
        self.fits.refuse_lost_end(self._store.url)
        if self._resume == "must" and self.fits.origin is None:
            raise CheckpointNotFoundError(
                f"{asked(self._resume)}, but {self._store.url} holds no checkpoint to go on from. Check the directory, "
                f"or start the run with {asked('auto')}.",
                path=self._store.url,
            )
        self.key = self._ranks.share("the key", self._new_key(seed))
        given, self._given = self._given, None  # its tensors are not needed twice
        if given is None:
            warn_of_names(self._changes, {*self._describe(self.key), ORIGIN}, self._log)
        else:
            self.accepted = adopt(given, self._framework, self._changes, self._describe, self._log)
        if self._ranks.is_first:
            self._checkpointer.reserve(self._framework.weights_bytes)

    def _describe(self, key: int) -> RunConfig:
        """The run's config, read once, before anything is loaded."""
        self._framework.prepare(key)
        if not self.config:
            self.provenance = provenance()
            chosen = describe_chosen(self._changes, self.provenance)
            self.config = {**self._framework.describe(), **chosen}
        return self.config

    @property
    def origin_fact(self) -> dict[str, Any]:
        """What the run had started from, as manifests and attempts say it; empty when it began anew."""
        return {} if self._origin is None else {ORIGIN: self._origin.as_dict()}
