"""Checkpoints gone over copy by copy: each chunk is read and compared with its digest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from resume_core.cli.names import fits, split_url
from resume_core.directory import open_lineage
from resume_core.errors import CheckpointNotFoundError, CorruptCheckpointError
from resume_core.storage import CheckpointRef, FileReader, Lineage, Manifest, Store
from resume_core.storage.read import read_manifest, read_weights_manifest

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
    url: str, *, scratch: str | None = None, options: Mapping[str, Any] | None = None
) -> tuple[list[Copy], list[CorruptCheckpointError]]:
    """The copies of what ``url`` names: a run, an attempt of it, or one checkpoint, newest first.

    Args:
        url: local or any URL that fsspec knows.
        scratch: the run's fast local directory.
        options: for fsspec.

    Returns:
        The copies, and what is wrong with the attempts themselves.

    Raises:
        CheckpointNotFoundError: there is no such run, attempt or checkpoint.
        ValueError: a URL that cannot be meant.
        OSError: the store cannot be read.
    """
    lineage, (root, name) = open_lineage(url, scratch, options), split_url(url)
    damaged = lineage.damaged()
    if name and not lineage.attempts() and not damaged:
        lineage = open_lineage(root, scratch, options)
        damaged = lineage.damaged()
    else:
        name = ""
    found = [copy for copy in _all(lineage) if fits(copy.ref, name)]
    if name and not any(copy.ref.path == name for copy in found):
        exact = name.rpartition("/")[2]
        found = [copy for copy in found if copy.ref.name == exact] or found
    if not found and (name or not damaged) and not lineage.attempts():
        raise CheckpointNotFoundError(f"{url} is no directory of a run: there is no attempt in it", path=url)
    if not found and (name or not damaged):
        what = f"{name!r} in {lineage.store.url}" if name else lineage.store.url
        raise CheckpointNotFoundError(f"{what}: {lineage.inventory()}", path=url)
    return found, damaged


def _all(lineage: Lineage) -> Iterator[Copy]:
    seen = lineage.glance()
    # a glance is for finding them: it remembers what it has read, and what was deleted since would look damaged
    plain = dict(zip(seen.tiers.stores, lineage.tiers.stores, strict=True))
    for attempt in reversed(seen.attempts()):
        for ref in seen.checkpoints(attempt.name):
            found = seen.tiers.committed(ref)
            yield from (Copy(CheckpointRef(ref.attempt, ref.name), plain[store]) for store in found)
        for ref, _ in seen.weights(attempt.name):
            yield from (Copy(ref, plain[store], weights_only=True) for store in seen.tiers.with_weights(ref))
