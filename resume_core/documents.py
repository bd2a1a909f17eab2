"""What the files of a checkpoint are called, and its JSON files.

Without torch, so that commands which look at them start at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from resume_core.errors import CorruptCheckpointError
from resume_core.storage import CheckpointRef, Manifest, Store, read_file
from resume_core.text import loads

__all__ = ["EXTRAS", "OWN", "STRUCTURE", "TENSORS", "read_document"]

STRUCTURE = "training.json"
"""The structures of the parts of a state that are the same on all ranks, or nearly so."""


TENSORS = {"model": "model.safetensors", "training": "training.safetensors"}
"""The files of the parts of a state that are the same on all ranks, or nearly so."""

EXTRAS = "extras.json"
"""What exports alone read, where there is anything: no restore pays for it."""

OWN = "own"
"""What a rank has otherwise than rank 0 of those parts: a field of its document, and the prefix of its tensors."""


def read_document(
    stores: Sequence[Store], ref: CheckpointRef, manifest: Manifest, name: str, keys: set[str]
) -> dict[str, Any]:
    """A file of a checkpoint that holds a JSON object.

    Args:
        stores: those that may hold it, nearest first.
        ref: the checkpoint.
        manifest: its manifest.
        name: of the file.
        keys: that it has.

    Raises:
        CorruptCheckpointError: the file is damaged, or is something else.
        OSError: no store that holds it can be read.
    """
    path = f"{ref.path}/{name}"
    document = loads(bytes(read_file(stores, ref, manifest.file(name))), path=path)
    if not isinstance(document, dict) or not keys <= document.keys():
        raise CorruptCheckpointError(f"{path} lacks the structure it is for", path=ref.path)
    return document
