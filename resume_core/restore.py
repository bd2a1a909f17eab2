"""Which checkpoint a run goes on from: candidates, comparison of configurations, reading.

Nothing here touches a live object except the number of torch's threads; applying is the framework's part.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch

from resume_core.capture.as_saved import goes_on_as_saved
from resume_core.capture.runconfig import Accepted, Difference, as_seen_by, check, idle_names, idle_text, table
from resume_core.checkpointer import Checkpointer
from resume_core.errors import (
    CheckpointNotFoundError,
    ConfigChangedError,
    CorruptCheckpointError,
    ResumeError,
    UnsupportedStateError,
)
from resume_core.origin import ORIGIN, Origin
from resume_core.policy import Changes
from resume_core.ranks import Ranks
from resume_core.saved_header import Header, header_of, origin_of
from resume_core.state import Progress, RunConfig, State
from resume_core.storage import CheckpointRef, Lineage, Manifest

__all__ = [
    "Restored",
    "Restorer",
    "consequences",
    "is_same_machine",
    "read_key",
    "read_origin",
    "read_preamble",
    "report",
    "restore_threads",
    "warn_of_names",
]

_T = TypeVar("_T")
_DAMAGE, _GONE = "damage", "gone"
_THREADS = "environment.threads"


@dataclass(frozen=True)
class Restored:
    """What a run goes on from.

    Attributes:
        ref: the checkpoint.
        progress: where it was taken.
        key: the run's root of all data randomness.
        accepted: differences of the run config that were accepted.
        size_bytes: of the files that this rank has read.
        finished: how training had ended, None for a checkpoint from before its end.
        origin: what the run had started from, None when it began anew.
        tier: the nearest store that it was in, for messages.
        is_promoted: whether it is in the run's directory.
        all_bytes: of the files of all ranks.
        digest: that of its manifest, as it stands there.
        evidence: what the save knew of the batch behind it, see `resume_core.evidence`.
    """

    ref: CheckpointRef
    progress: Progress
    key: int
    accepted: Accepted
    size_bytes: int = 0
    finished: Mapping[str, Any] | None = None
    origin: Origin | None = None
    tier: str = ""
    is_promoted: bool = True
    all_bytes: int = 0
    digest: str = ""
    evidence: Mapping[str, Any] = field(default_factory=dict)


class Restorer:
    """Finds the newest checkpoint that can be used.

    Args:
        checkpointer: reads.
        lineage: of the run; tells where a checkpoint is.
        changes: what may differ from the run that saved.
        describe: the config of the run that resumes, given the key of the run.
        log: where messages go.
        ranks: those that train together; all use the same checkpoint.
        live: gives live tensors that the weights may be read into, by name; none unless given.
    """

    def __init__(
        self,
        checkpointer: Checkpointer,
        lineage: Lineage,
        changes: Changes,
        describe: Callable[[int], RunConfig],
        log: logging.Logger,
        ranks: Ranks,
        live: Callable[[], Mapping[str, torch.Tensor]] = dict,
    ) -> None:
        self._checkpointer, self._lineage = checkpointer, lineage
        self._ranks = ranks
        self._live = live
        self._is_touched = False
        self._changes = changes
        self._describe = describe
        self._log = log

    def first_usable(self, candidates: Callable[[], Iterable[CheckpointRef]]) -> tuple[Restored, State] | None:
        """Read the first candidate that is whole; those before it are reported.

        Args:
            candidates: lists them; asked again when one is deleted while it is read.

        Returns:
            None without any candidate.

        Raises:
            ConfigChangedError: the run differs from the one that saved; nothing was read.
            CorruptCheckpointError: there are candidates and none of them can be used. Live weights may be overwritten
                in part then, and after an OSError too.
            CheckpointNotFoundError: there were, and they were deleted while they were read.
            OSError: the store cannot be read.
        """
        kind, damage = "", ""
        passed_over, gone = set[str](), set[str]()
        waiting = iter(candidates())
        while (ref := self._next(waiting, passed_over)) is not None:
            compared, error = self._try(self._compare, ref)
            kind, damage = self._verdict(ref, error)
            if not kind:  # on no rank: until then none has touched its weights
                found, error = self._try(self._read, ref, compared)
                kind, damage = self._verdict(ref, error)
            if not kind:
                return found
            if kind == _GONE and ref.path not in gone:
                gone.add(ref.path)
                self._log.info("%s was deleted while it was read: what is there is listed again", ref.path)
                waiting = iter(candidates())
                continue
            passed_over.add(ref.path)
            self._log.warning("%s cannot be used: %s", ref.path, damage)
        if not kind:
            return None
        url = self._lineage.store.url
        if kind == _GONE:
            raise CheckpointNotFoundError(
                f"the last checkpoint of this run's line in {url} was deleted while it was read, and none is left. "
                'Restore the files, or start anew on purpose with resume="never".',
                path=url,
            )
        warning = "The weights in this process may be parts of a damaged checkpoint: do not use them. "
        raise CorruptCheckpointError(
            f"no checkpoint of this run's line in {url} can be used; the last reason: {damage} "
            f"{warning if self._is_touched else ''}"
            'Restore the files, or start anew on purpose with resume="never".',
            path=url,
        )

    def _next(self, waiting: Iterator[CheckpointRef], passed_over: Collection[str]) -> CheckpointRef | None:
        """The next candidate that was not passed over, as rank 0 sees them."""

        def choose(_: list[Any]) -> Any:
            ref = next((ref for ref in waiting if ref.path not in passed_over), None)
            return None if ref is None else [ref.attempt, ref.name, ref.serial]

        chosen = self._ranks.agree("the choice of a checkpoint", None, choose)
        return None if chosen is None else CheckpointRef(*chosen)

    def _try(self, act: Callable[..., _T], *args: Any) -> tuple[_T | None, Exception | None]:
        try:
            return act(*args), None
        except Exception as error:  # whatever it is, the other ranks must hear of it
            return None, error

    def _verdict(self, ref: CheckpointRef, error: Exception | None) -> tuple[str, str]:
        """Whether ``ref`` is damaged or gone, on any rank, and what is wrong; empty when all can go on from it.

        Raises:
            Exception: the error of this rank, or one that tells of another's, when it is neither.
        """
        is_damage = isinstance(error, (CorruptCheckpointError, CheckpointNotFoundError))
        kind = "" if error is None else type(error).__name__
        if is_damage:
            # who deletes a checkpoint begins with the manifest, so files that vanish first are damage
            kind = _DAMAGE if self._lineage.tiers.committed(ref) else _GONE
        kind, text = self._ranks.agree("reading the checkpoint", [kind, str(error or "")], _worst)
        if kind in ("", _GONE, _DAMAGE):
            return kind, text
        if error is not None and not is_damage:
            raise error
        known = {"ConfigChangedError": ConfigChangedError, "UnsupportedStateError": UnsupportedStateError}
        raise known.get(kind, ResumeError)(text, path=ref.path)

    def _compare(self, ref: CheckpointRef) -> tuple[Manifest, Header, Accepted]:
        manifest = self._lineage.read_manifest(ref)
        header = header_of(manifest)
        current = as_seen_by(self._ranks.rank, header.config, self._describe(header.key))
        accepted = check(header.config, current, self._changes, path=ref.path, step=header.progress.step)
        warn_of_names(self._changes, {*header.config, *current, ORIGIN}, self._log)
        return manifest, header, accepted

    def _read(self, ref: CheckpointRef, compared: tuple[Manifest, Header, Accepted]) -> tuple[Restored, State]:
        manifest, header, accepted = compared
        stores = self._lineage.tiers.committed(ref)
        if not stores:
            raise CheckpointNotFoundError(f"{ref.path} was deleted while it was read", path=ref.path)
        for error in self._lineage.tiers.damaged(ref) if len(stores) > 1 else ():
            self._log.warning("%s Another copy is used.", error)
        live = self._live()
        self._is_touched = self._is_touched or bool(live)
        state = self._checkpointer.read(ref, manifest, stores=stores, into={"model": live})
        report(accepted, self._log)
        restored = Restored(
            manifest.ref,
            header.progress,
            header.key,
            accepted,
            size_bytes=self._checkpointer.size_bytes(manifest),
            finished=header.finished,
            origin=header.origin,
            tier=stores[0].url,
            is_promoted=self._lineage.store in stores,
            all_bytes=sum(record.size_bytes for record in manifest.files),
            digest=manifest.digest,
            evidence=header.evidence,
        )
        return restored, state


def warn_of_names(changes: Changes, known: set[str], log: logging.Logger) -> None:
    """Say which names in ``changes`` no run has: a misspelt one would be found out only when it is needed."""
    idle = idle_names(changes, known)
    if idle:
        log.warning("Changes(allow=...) names what no run has: %s", idle_text(idle, known))


def report(accepted: Accepted, log: logging.Logger) -> None:
    """Say which differences were accepted, and why."""
    warned = 'the run differs from its checkpoint (Changes(otherwise="warn")):\n%s'
    kept = "accepted, and not applied: the run goes on with the saved values of these (see the docs of `changes`):\n%s"
    not_applied = tuple(d for d in (*accepted.allowed, *accepted.warned) if goes_on_as_saved(d.name))
    applied = tuple(d for d in accepted.allowed if d not in not_applied)
    hopes = any(d.name != "seed" for d in not_applied)  # another seed at each start is nothing to be told of
    inexact = (
        "from here on the run may not be what it would have been, bit for bit: it goes on, and since its checkpoint "
        "these have changed:\n%s"
    )
    others = tuple(difference for difference in accepted.info if difference not in accepted.inexact)
    for level, text, differences in (
        (logging.WARNING, warned, tuple(d for d in accepted.warned if d not in not_applied)),
        (logging.WARNING if hopes else logging.INFO, kept, not_applied),
        (logging.WARNING, inexact, accepted.inexact),
        (logging.INFO, "changes that were allowed:\n%s", applied),
        (logging.INFO, "other differences, for your information:\n%s", others),
    ):
        if differences:
            log.log(level, text, table(differences))


def _worst(found: list[list[str]]) -> list[str]:
    """What decides for all: an error on any rank, else damage on any."""
    several = len(found) > 1
    named = [[kind, f"on rank {rank}: {text}" if several else text] for rank, (kind, text) in enumerate(found) if kind]
    order = (_DAMAGE, _GONE)  # what was deleted may have been seen half-deleted elsewhere
    return max(named, key=lambda item: order.index(item[0]) if item[0] in order else len(order), default=["", ""])


def read_key(lineage: Lineage, ref: CheckpointRef) -> int | None:
    """The key of the run that wrote a checkpoint, None when its manifest cannot be used."""
    try:
        return header_of(lineage.read_manifest(ref)).key
    except (CorruptCheckpointError, CheckpointNotFoundError):
        return None


def read_preamble(lineage: Lineage, ref: CheckpointRef) -> Mapping[str, Any] | None:
    """What a checkpoint tells the framework before it is read, None when its manifest cannot be used."""
    try:
        return dict(lineage.read_manifest(ref).header.get("preamble", {}))
    except (CorruptCheckpointError, CheckpointNotFoundError, TypeError, ValueError):
        return None


def read_origin(lineage: Lineage, ref: CheckpointRef) -> Origin | None:
    """What the run that wrote a checkpoint had started from, None for a run that began anew.

    Raises:
        CorruptCheckpointError: the manifest cannot be used.
        CheckpointNotFoundError: it is gone.
    """
    return origin_of(lineage.read_manifest(ref))


def restore_threads(accepted: Accepted, log: logging.Logger) -> None:
    """Let torch compute with as many threads as the run did: sums are split over them and round accordingly."""
    difference = next((d for d in accepted.info if d.name == _THREADS), None)
    if difference is None or not isinstance(difference.saved, int):
        return
    if _has_cores(difference):
        torch.set_num_threads(difference.saved)
        log.info("torch computes with %d threads again, as the run did before", difference.saved)
    else:
        log.warning(
            "the run used %d threads and this machine has %s: results may differ in the last bits",
            difference.saved,
            os.cpu_count(),
        )


def consequences(accepted: Accepted) -> list[str]:
    """Names of accepted changes that alter what is computed: all but settings that go on as they were saved."""
    decisive = (*accepted.allowed, *accepted.warned)
    return [d.name for d in decisive if not goes_on_as_saved(d.name)]


def is_same_machine(accepted: Accepted) -> bool:
    """Whether what is computed comes out as where it was saved, to the last bit, once `restore_threads` was called."""
    threads = [d for d in accepted.info if d.name == _THREADS]
    return all(d in threads for d in accepted.inexact) and all(map(_has_cores, threads))


def _has_cores(threads: Difference) -> bool:
    """Whether as many threads can be had as were used."""
    return isinstance(threads.saved, int) and threads.saved <= (os.cpu_count() or 1)
