"""Promotion: one rank's share of a checkpoint that one tier has committed, written to the next.

It goes by the same protocol as any save (``commit``): files, part, and on rank 0 the manifest, last and after the look
for newer attempts. Under the same name, every file is byte by byte the one it was copied from, the manifest included.
Under another name, in the folder of the attempt that runs, it is the same state as a checkpoint of its own; so a new
attempt saves what a dead one had not promoted any more, and no attempt ever writes in the folder of another.
"""

from __future__ import annotations

from resume_core.errors import CorruptCheckpointError
from resume_core.storage.commit import CheckpointWriter
from resume_core.storage.interface import Store
from resume_core.storage.manifest import CheckpointRef, Part
from resume_core.storage.paths import join_key, part_file

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
        CorruptCheckpointError: the part or a file is missing, or not what was saved.
        OSError: one of the stores refused.
    """
    for record in _read_part(source, ref, rank, world_size).files:
        writer.copy_file(source, ref, record)


def _read_part(source: Store, ref: CheckpointRef, rank: int, world_size: int) -> Part:
    key = join_key(ref.path, part_file(rank))
    path = source.locate(key)
    try:
        part = Part.from_bytes(source.read(key), path=path)
    except FileNotFoundError as error:
        raise CorruptCheckpointError(f"{path} is missing", path=path) from error
    if (part.attempt, part.checkpoint, part.rank, part.world_size) != (ref.attempt, ref.name, rank, world_size):
        raise CorruptCheckpointError(f"{path} is the part of another save: files were moved", path=path)
    return part
