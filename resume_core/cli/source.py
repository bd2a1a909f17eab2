"""Which checkpoint a URL names, and what is in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from resume_core.cli.names import open_named
from resume_core.documents import STRUCTURE, read_document
from resume_core.errors import CheckpointNotFoundError, CorruptCheckpointError
from resume_core.naming import resolve
from resume_core.state import Checkpoint, Progress
from resume_core.storage import CheckpointRef, FileReader, Lineage, Manifest, Store
from resume_core.storage.manifests import read_weights_manifest
from resume_core.storage.paths import MANIFEST_FILE, MODEL_FILE, WEIGHTS_FILE, join_key

if TYPE_CHECKING:
    from resume_core.files import CheckpointFiles

__all__ = ["Source", "find", "reading"]


@dataclass(frozen=True)
class Source:
    """A checkpoint that was found.

    Attributes:
        manifest: its manifest, or that of the weights which are left of it.
        stores: those that hold it, nearest first.
        lineage: of the run, as it was when it was found.
        is_thinned: whether only the weights are left.
    """

    manifest: Manifest
    stores: Sequence[Store]
    lineage: Lineage
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
        from resume_core.saved_header import header_of

        return header_of(self.manifest).progress

    @property
    def _files(self) -> CheckpointFiles:
        from resume_core.files import CheckpointFiles

        return CheckpointFiles(self.stores, self.ref, self.manifest)

    @cached_property
    def structure(self) -> Mapping[str, Any]:
        """What is around the tensors, as JSON; see `CheckpointFiles.structure`."""
        found: Mapping[str, Any] = self.document(STRUCTURE, {"model", "training"})
        return found

    def document(self, name: str, keys: set[str]) -> Any:
        """A JSON file of it; see `CheckpointFiles.document`."""
        return read_document(self.stores, self.ref, self.manifest, name, keys)

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

    def check_there(self) -> None:
        """Look whether it is still there, where something was amiss: a run deletes what it does not keep.

        Raises:
            CheckpointNotFoundError: it is not, nor what was meant of it.
            OSError: a store cannot be read.
        """
        key = join_key(self.ref.path, WEIGHTS_FILE if self.is_thinned else MANIFEST_FILE)  # which goes first
        if not any(store.exists(key) for store in self.stores):
            message = f"{self.ref.path} was deleted while it was read, as the run does not keep it: take another one"
            raise CheckpointNotFoundError(message, path=self.ref.path)


@contextmanager
def reading(*sources: Source) -> Iterator[None]:
    """What is read within is damaged only if it is still there.

    Raises:
        CheckpointNotFoundError: one of the sources was deleted meanwhile, in place of the damage.
    """
    try:
        yield
    except CorruptCheckpointError as error:
        for source in sources:
            try:
                source.check_there()
            except CheckpointNotFoundError as gone:
                raise gone from error
        raise


def find(
    url: str, name: str | None = None, *, scratch: str | None = None, options: Mapping[str, Any] | None = None
) -> Source:
    """The checkpoint that is meant: of a run, or an attempt, its newest.

    Args:
        url: of a run's directory, an attempt, or one checkpoint; a local path or any URL that fsspec knows.
        name: of one in that run, see `resume_core.naming`; None for what ``url`` names.
        scratch: the run's fast local directory, which may hold copies.
        options: for fsspec.

    Raises:
        CheckpointNotFoundError: there is none, or the name fits several.
        CorruptCheckpointError: its manifest cannot be used.
        ValueError: a URL that cannot be meant.
        OSError: the store cannot be read.
    """
    lineage, name = open_named(url, name, scratch, options)
    seen = lineage.glance()  # to find it: what is read of it is read as it is now
    ref = resolve(seen, name, thinned=True)
    stores = lineage.tiers.committed(ref)
    if not stores and (holding := lineage.tiers.with_weights(ref)):
        return Source(read_weights_manifest(holding[-1], ref), holding, seen, is_thinned=True)
    return Source(lineage.read_manifest(ref), stores, seen)
