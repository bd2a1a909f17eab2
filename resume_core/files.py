"""The files of a checkpoint, read back as structures and tensors: where storage meets image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from resume_core.errors import CorruptCheckpointError
from resume_core.image import (
    OwnPart,
    header_bytes,
    live_targets,
    loads,
    make_target,
    parse_header,
    unflatten,
    with_own_part,
)
from resume_core.storage import CheckpointRef, FileReader, Manifest, Store, read_file

__all__ = ["CheckpointFiles"]

_LENGTH_BYTES = 8  # of the field that a safetensors file begins with


@dataclass(frozen=True)
class CheckpointFiles:
    """What is in the files of one checkpoint. No byte is looked at whose digest was not checked.

    Attributes:
        stores: those that may hold it, nearest first.
        ref: the checkpoint.
        manifest: its manifest.
    """

    stores: Sequence[Store]
    ref: CheckpointRef
    manifest: Manifest

    def document(self, name: str, keys: set[str]) -> Any:
        """A JSON object that has ``keys``.

        Raises:
            CorruptCheckpointError: the file is damaged, or is something else.
            OSError: no store that holds it can be read.
        """
        path = f"{self.ref.path}/{name}"
        document = loads(bytes(read_file(self.stores, self.ref, self.manifest.file(name))), path=path)
        if not isinstance(document, dict) or not keys <= document.keys():
            raise CorruptCheckpointError(f"{path} lacks the structure it is for", path=self.ref.path)
        return document

    def tensors(
        self,
        name: str,
        structure: Any = None,
        *,
        into: Mapping[str, torch.Tensor] | None = None,
        plain: bool = False,
    ) -> Mapping[str, torch.Tensor]:
        """Name to tensor, each with memory of its own: what `unflatten` takes.

        Args:
            name: of a safetensors file.
            structure: what it will be unflattened with; needed only for ``into``.
            into: live tensors to be read into, where they lie in memory as the saved ones do.
            plain: whether the file was laid out in C order.

        Raises:
            CorruptCheckpointError: the file is damaged, or none of this format.
            OSError: no store that holds it can be read.
        """
        reader = FileReader(self.stores, self.ref, self.manifest.file(name))
        beginning = reader.read_beginning(_LENGTH_BYTES)
        if len(beginning) < header_bytes(beginning):
            beginning = reader.read_beginning(header_bytes(beginning))
        header = parse_header(beginning, path=f"{self.ref.path}/{name}", size_bytes=reader.size_bytes)
        live = live_targets(header, structure, into, plain=plain) if into else {}
        target = make_target(header, live)
        reader.read_scattered(target.memory, beginning, header_bytes(beginning))
        return target.tensors

    def tree(
        self,
        name: str,
        structure: Any,
        own: OwnPart | None = None,
        *,
        into: Mapping[str, torch.Tensor] | None = None,
        plain: bool = False,
    ) -> Any:
        """The tree whose tensors are in one file, and in ``own`` what this rank has otherwise.

        Raises:
            CorruptCheckpointError: the file is damaged, or does not belong to ``structure``.
            UnsupportedStateError: a leaf of the user's own that is not registered in this process.
            OSError: no store that holds it can be read.
        """
        path = f"{self.ref.path}/{name}"
        if own is None:
            tensors = self.tensors(name, structure, into=into, plain=plain)
            return unflatten(structure, tensors, plain=plain, path=path)
        shared = {key: tensor for key, tensor in (into or {}).items() if key in own.shared}
        mine = structure if own.structure is None else own.structure
        tensors = self.tensors(name, mine, into=shared, plain=plain)
        try:
            structure, tensors = with_own_part(structure, tensors, own)
        except (KeyError, TypeError) as error:
            raise CorruptCheckpointError(f"{path} and the file of a rank do not belong together: {error!r}") from error
        return unflatten(structure, tensors, plain=plain, path=path)
