"""Checkpoints gone over copy by copy: each chunk is read and compared with its digest."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from resume_core.cli.names import open_named
from resume_core.errors import CheckpointNotFoundError, CorruptCheckpointError
from resume_core.naming import absence, is_best, is_latest, nothing_left, resolve, select
from resume_core.storage import CheckpointRef, FileReader, Lineage, Manifest, Store
from resume_core.storage.manifests import read_manifest, read_weights_manifest
from resume_core.storage.missing_manifests import MissingManifest, missing_manifests, newest_missing

__all__ = ["Copy", "copies"]


@dataclass(frozen=True)
class Copy:
    """A checkpoint as it lies on one tier.

    Attributes:
        ref: the checkpoint.
        store: the tier.
        weights_only: whether the rest was taken away, as ``Keep(thin_after=...)`` asks for.
    """

    ref: CheckpointRef
    store: Store
    weights_only: bool = False

    def check(self) -> int:
        """Read all of it.

        Returns:
            How many bytes that was.

        Raises:
            CheckpointNotFoundError: it was deleted since it was listed.
            CorruptCheckpointError: the first thing that is wrong.
            OSError: the store cannot be read.
        """
        manifest = self._manifest()
        try:
            for record in manifest.files:
                FileReader([self.store], self.ref, record).verify()
        except CorruptCheckpointError:
            self._manifest()  # a run that is under way deletes what it does not keep, the manifest first
            raise
        return sum(record.size_bytes for record in manifest.files)

    def _manifest(self) -> Manifest:
        return (read_weights_manifest if self.weights_only else read_manifest)(self.store, self.ref)


def copies(
    url: str, name: str | None = None, *, scratch: str | None = None, options: Mapping[str, Any] | None = None
) -> tuple[list[Copy], list[CorruptCheckpointError], list[MissingManifest]]:
    """The copies of what is meant: a run, an attempt of it, or one checkpoint, newest first.

    Args:
        url: local or any URL that fsspec knows.
        name: of an attempt or a checkpoint in that run, see `resume_core.naming`; None for what ``url`` names.
        scratch: the run's fast local directory.
        options: for fsspec.

    Returns:
        The copies, what is wrong with the attempts themselves, and what was committed and has no manifest any more.

    Raises:
        CheckpointNotFoundError: there is no such run, attempt or checkpoint.
        ValueError: a URL that cannot be meant.
        OSError: the store cannot be read.
    """
    lineage, name = open_named(url, name, scratch, options)
    damaged = lineage.damaged()
    seen = lineage.glance()
    # a glance is for finding them: it remembers what it has read, and what was deleted since would look damaged
    plain = dict(zip(seen.tiers.stores, lineage.tiers.stores, strict=True))
    refs = _meant(seen, name) if name else _all(seen)
    found = [replace(copy, store=plain[copy.store]) for ref in refs for copy in _copies(seen, ref)]
    missing = _missing(lineage, seen, name)
    if not found and name and not missing:
        raise absence(lineage, name)
    if not found and not damaged and not missing:
        raise CheckpointNotFoundError(nothing_left(lineage), path=lineage.store.url)
    return found, damaged, missing


def _missing(lineage: Lineage, seen: Lineage, name: str) -> list[MissingManifest]:
    """Of what is meant, the checkpoints that have lost their manifests; beside the newest one those that are newer."""
    if is_latest(name):
        return newest_missing(lineage, seen)
    if not name:
        return missing_manifests(lineage, seen)
    tiers = seen.tiers
    bare = {ref.path for ref in select(seen, name) if not (tiers.committed(ref) or tiers.with_weights(ref))}
    return [one for one in missing_manifests(lineage, seen) if one.ref.path in bare] if bare else []


def _meant(lineage: Lineage, name: str) -> Iterable[CheckpointRef]:
    """The newest or the best where that is asked for, else all that the name fits."""
    is_one = is_latest(name) or is_best(name)
    return [resolve(lineage, name, thinned=True)] if is_one else select(lineage, name)


def _all(lineage: Lineage) -> Iterator[CheckpointRef]:
    for attempt in reversed(lineage.attempts()):
        yield from lineage.checkpoints(attempt.name)
        yield from reversed([ref for ref, _ in lineage.weights(attempt.name)])


def _copies(lineage: Lineage, ref: CheckpointRef) -> Iterator[Copy]:
    place = CheckpointRef(ref.attempt, ref.name)
    if stores := lineage.tiers.committed(ref):
        yield from (Copy(place, store) for store in stores)
    else:
        yield from (Copy(place, store, weights_only=True) for store in lineage.tiers.with_weights(ref))
