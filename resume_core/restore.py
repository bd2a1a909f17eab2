"""Which checkpoint a run goes on from: candidates, comparison of configurations, reading.

Nothing here touches a live object but the weights that a checkpoint is read into; applying is the framework's part.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from resume_core.accepted import report, warn_of_names
from resume_core.capture.runconfig import Accepted, as_seen_by, check
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
from resume_core.saved_header import TOLD, Header, header_of
from resume_core.state import Progress, RunConfig, State
from resume_core.storage import CheckpointRef, Lineage, Manifest

__all__ = ["Restored", "Restorer"]

_T = TypeVar("_T")
_DAMAGE, _GONE = "damage", "gone"


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
        told: of its header what times and places are accounted by; the checkpoint may be deleted later.
    """

    ref: CheckpointRef
    progress: Progress
    key: int
    accepted: Accepted
    size_bytes: int
    finished: Mapping[str, Any] | None
    origin: Origin | None
    tier: str
    is_promoted: bool
    all_bytes: int
    digest: str
    evidence: Mapping[str, Any]
    told: Mapping[str, Any]


class Restorer:
    """Finds the newest checkpoint that can be used.

    Args:
        checkpointer: reads.
        lineage: of the run; tells where a checkpoint is.
        changes: what may differ from the run that saved.
        describe: the config of the run that resumes, given the key of the run.
        live: gives live tensors that the weights may be read into, by name.
        ranks: those that train together; all use the same checkpoint.
        log: where messages go.
    """

    def __init__(
        self,
        checkpointer: Checkpointer,
        lineage: Lineage,
        changes: Changes,
        *,
        describe: Callable[[int], RunConfig],
        live: Callable[[], Mapping[str, torch.Tensor]],
        ranks: Ranks,
        log: logging.Logger,
    ) -> None:
        self._checkpointer, self._lineage, self._changes = checkpointer, lineage, changes
        self._describe, self._live = describe, live
        self._ranks, self._log = ranks, log
        self._is_touched = False  # whether live weights were read into

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
            ref=manifest.ref,
            progress=header.progress,
            key=header.key,
            accepted=accepted,
            size_bytes=self._checkpointer.size_bytes(manifest),
            finished=header.finished,
            origin=header.origin,
            tier=stores[0].url,
            is_promoted=self._lineage.store in stores,
            all_bytes=sum(record.size_bytes for record in manifest.files),
            digest=manifest.digest,
            evidence=header.evidence,
            told={name: manifest.header[name] for name in TOLD if name in manifest.header},
        )
        return restored, state


def _worst(found: list[list[str]]) -> list[str]:
    """What decides for all: an error on any rank, else damage on any."""
    several = len(found) > 1
    named = [[kind, f"on rank {rank}: {text}" if several else text] for rank, (kind, text) in enumerate(found) if kind]
    order = (_DAMAGE, _GONE)  # what was deleted may have been seen half-deleted elsewhere
    return max(named, key=lambda item: order.index(item[0]) if item[0] in order else len(order), default=["", ""])
