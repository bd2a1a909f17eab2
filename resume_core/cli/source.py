"""Which checkpoint a URL names, and what is in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from resume_core.cli.names import fits, split_url
from resume_core.directory import open_lineage
from resume_core.errors import CheckpointNotFoundError
from resume_core.state import Checkpoint, Progress
from resume_core.storage import CheckpointRef, FileReader, Lineage, Manifest, Store
from resume_core.storage.paths import MODEL_FILE
from resume_core.storage.read import read_weights_manifest

if TYPE_CHECKING:
    from resume_core.files import CheckpointFiles

__all__ = ["Source", "find"]


@dataclass(frozen=True)
class Source:
    """A checkpoint that was found.

    Attributes:
        manifest: its manifest, or that of the weights which are left of it.
        stores: those that hold it, nearest first.
        is_thinned: whether only the weights are left.
    """

    manifest: Manifest
    stores: Sequence[Store]
    is_thinned: bool = False

    @property
    def ref(self) -> CheckpointRef:
        """Where it lies."""
        return self.manifest.ref

    @property
    def progress(self) -> Progress:
        """Where it was taken.

        Raises:
            CorruptCheckpointError: the header holds what no session writes.
        """
        from resume_core.saved_header import header_of  # these need torch, and finding a checkpoint does not

        return header_of(self.manifest).progress

    @property
    def _files(self) -> CheckpointFiles:
        from resume_core.files import CheckpointFiles

        return CheckpointFiles(self.stores, self.ref, self.manifest)

    @cached_property
    def structure(self) -> Mapping[str, Any]:
        """What is around the tensors, as JSON; see `CheckpointFiles.structure`."""
        return self._files.structure()

    def read(self) -> Checkpoint:
        """All of it, every chunk checked against its digest.

        Raises:
            CorruptCheckpointError: a file is missing, torn, altered or cannot be understood.
            UnsupportedStateError: a leaf of the user's own that is not registered in this process.
            OSError: no store that holds it can be read.
        """
        from resume_core.image import unflatten

        files, structure = self._files, self.structure
        first = files.state(0, structure=structure)
        ranks = [first.rank, *(files.rank(rank) for rank in range(1, self.manifest.world_size))]
        info = unflatten(structure.get("info", {}), {}, path=self.ref.path)
        return Checkpoint(self.progress, first.model, first.training, ranks, info, files.extras())

    def weights(self) -> FileReader:
        """A reader of the file of the weights.

        Raises:
            CorruptCheckpointError: no store has it.
            OSError: a store cannot be read, and no other has it.
        """
        return FileReader(self.stores, self.ref, self.manifest.file(MODEL_FILE))


def find(url: str, *, scratch: str | None = None, options: Mapping[str, Any] | None = None) -> Source:
    """The checkpoint that ``url`` names: of a run, or an attempt, its newest.

    Args:
        url: of a run's directory, an attempt, or one checkpoint; a local path or any URL that fsspec knows.
        scratch: the run's fast local directory, which may hold copies.
        options: for fsspec.

    Raises:
        CheckpointNotFoundError: there is none, or the name fits several.
        CorruptCheckpointError: its manifest cannot be used.
        ValueError: a URL that cannot be meant.
        OSError: the store cannot be read.
    """
    lineage = open_lineage(url, scratch, options)
    root, name = split_url(url)
    if name and not lineage.attempts():
        lineage = open_lineage(root, scratch, options)
    else:
        name = ""
    ref = _named(lineage, name) if name else _newest(lineage)
    if isinstance(ref, Source):
        return ref
    manifest = lineage.read_manifest(ref)
    return Source(manifest, lineage.tiers.committed(ref))


def _newest(lineage: Lineage) -> CheckpointRef:
    for ref in lineage.candidates():
        return ref
    url = lineage.store.url
    if not lineage.attempts():
        raise CheckpointNotFoundError(f"{url} is no directory of a run: there is no attempt in it", path=url)
    raise CheckpointNotFoundError(f"the newest attempt in {url} has saved nothing. {lineage.inventory()}", path=url)


def _named(lineage: Lineage, name: str) -> CheckpointRef | Source:
    try:
        return lineage.find(name)
    except CheckpointNotFoundError:
        thinned = _thinned(lineage, name)
        if thinned is None:
            raise
        return thinned


def _thinned(lineage: Lineage, name: str) -> Source | None:
    """The one checkpoint of that name of which only the weights are left."""
    folders = [attempt.name for attempt in lineage.attempts()]
    refs = [ref for folder in folders for ref, _ in lineage.weights(folder)]
    fitting = [ref for ref in refs if fits(ref, name)]
    exact = [ref for ref in fitting if ref.name == name.rpartition("/")[2]] or fitting
    if len(exact) != 1:
        return None
    (ref,) = exact
    stores = lineage.tiers.with_weights(ref)
    return Source(read_weights_manifest(stores[-1], ref), stores, is_thinned=True)
