"""Promotion: one rank's share of a checkpoint that one tier has committed, written to the next.

It goes by the same protocol as any save (``commit``): files, parts, and on rank 0 the manifest, last and after the look
for newer attempts. Under the same name, every file is byte by byte the one it was copied from, the manifest included.
Under another name, in the folder of the attempt that runs, it is the same state as a checkpoint of its own; so a new
attempt saves what a dead one had not promoted any more, and no attempt ever writes in the folder of another.
"""

from __future__ import annotations

from resume_core.errors import CheckpointNotFoundError, CorruptCheckpointError
from resume_core.storage.commit import CheckpointWriter
from resume_core.storage.interface import Store
from resume_core.storage.manifest import CheckpointRef
from resume_core.storage.manifests import read_manifest
from resume_core.storage.paths import parse_rank_file

__all__ = ["copy_share"]


def copy_share(writer: CheckpointWriter, source: Store, ref: CheckpointRef, rank: int, world_size: int) -> None:
    """Copy one rank's files of a committed checkpoint; ``writer`` is then ready for its part.

    Args:
        writer: of the place that they go to.
        source: the store they lie in.
        ref: the checkpoint there.
        rank: this rank.
        world_size: number of ranks that share the checkpoint.

    Raises:
        CorruptCheckpointError: it is not there, was saved by another number of ranks, or a file is not what was saved.
        OSError: one of the stores refused.
    """
    try:
        manifest = read_manifest(source, ref)
    except CheckpointNotFoundError as error:
        raise CorruptCheckpointError(str(error), path=error.path) from error
    if manifest.world_size != world_size:
        path = source.locate(ref.path)
        raise CorruptCheckpointError(f"{path} is of {manifest.world_size} ranks, not of {world_size}", path=path)
    for record in manifest.files:
        if (parse_rank_file(record.name) or 0) == rank:  # what all share is rank 0's
            writer.copy_file(source, ref, record)
