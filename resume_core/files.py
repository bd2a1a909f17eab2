"""The files of a checkpoint, read back as structures and tensors: where storage meets image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from resume_core.collector import collector_paused
from resume_core.documents import EXTRAS, OWN, STRUCTURE, TENSORS, read_document
from resume_core.errors import CorruptCheckpointError
from resume_core.image import (
    OwnPart,
    header_bytes,
    live_targets,
    make_target,
    parse_header,
    unflatten,
    with_own_part,
)
from resume_core.state import State
from resume_core.storage import CheckpointRef, FileReader, Manifest, Store, rank_file

__all__ = ["EXTRAS", "OWN", "SHARED", "STRUCTURE", "TENSORS", "CheckpointFiles"]

SHARED = tuple(TENSORS)

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

    def structure(self) -> dict[str, Any]:
        """What is around the tensors of all ranks: by part, and under ``"info"`` what was recorded for people.

        Raises:
            CorruptCheckpointError: the file is damaged, or is something else.
            OSError: no store that holds it can be read.
        """
        found: dict[str, Any] = self.document(STRUCTURE, {*SHARED})
        return found

    def extras(self) -> Any:
        """What was saved for exports alone; empty where nothing was.

        Raises:
            CorruptCheckpointError: the file is damaged, or is something else.
            OSError: no store that holds it can be read.
        """
        if all(record.name != EXTRAS for record in self.manifest.files):
            return {}
        return unflatten(self.document(EXTRAS, set()), {}, path=f"{self.ref.path}/{EXTRAS}")

    @collector_paused()  # as a whole: after each pause, a collection would visit all that was made in it
    def state(
        self,
        rank: int,
        *,
        into: Mapping[str, Mapping[str, torch.Tensor]] | None = None,
        structure: Mapping[str, Any] | None = None,
    ) -> State:
        """All that one rank had captured, but ``info``.

        The weights are read last: what cannot be understood elsewhere is found out before a live tensor is touched.

        Args:
            rank: one of those that saved.
            into: see `Checkpointer.read`.
            structure: what `structure` gave, when it was read before.

        Raises:
            CorruptCheckpointError: a file is missing, torn, altered or cannot be understood.
            UnsupportedStateError: a leaf of the user's own that is not registered in this process.
            OSError: no store that holds it can be read.
        """
        structure = self.structure() if structure is None else structure
        of_rank, own = self._read_rank(rank)
        trees = {
            part: self.tree(
                TENSORS[part], structure[part], own[part], into=(into or {}).get(part), plain=part == "model"
            )
            for part in reversed(SHARED)
        }
        return State(model=trees["model"], training=trees["training"], rank=of_rank)

    def rank(self, rank: int) -> Any:
        """What only that rank had.

        Raises:
            CorruptCheckpointError: see `state`.
            UnsupportedStateError: see `state`.
            OSError: see `state`.
        """
        return self._read_rank(rank)[0]

    def _read_rank(self, rank: int) -> tuple[Any, dict[str, OwnPart | None]]:
        name, document_name = rank_file(rank, ".safetensors"), rank_file(rank, ".json")
        document = self.document(document_name, {"rank", OWN})
        own_tensors, tensors = _split(self.tensors(name))
        tree = unflatten(document["rank"], tensors, path=f"{self.ref.path}/{name}")
        own = {part: self._own_part(document_name, part, document[OWN], own_tensors[part]) for part in SHARED}
        return tree, own

    def _own_part(self, name: str, part: str, table: Any, tensors: Mapping[str, torch.Tensor]) -> OwnPart | None:
        try:
            fields = table.get(part)
            return None if fields is None else OwnPart(fields["structure"], tuple(fields["shared"]), tensors)
        except (AttributeError, KeyError, TypeError) as error:
            path = f"{self.ref.path}/{name}"
            raise CorruptCheckpointError(f"{path} does not fit {TENSORS[part]}: {error!r}", path=path) from error

    def document(self, name: str, keys: set[str]) -> Any:
        """A JSON object that has ``keys``.

        Raises:
            CorruptCheckpointError: the file is damaged, or is something else.
            OSError: no store that holds it can be read.
        """
        return read_document(self.stores, self.ref, self.manifest, name, keys)

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


def _split(stored: Mapping[str, torch.Tensor]) -> tuple[dict[str, dict[str, torch.Tensor]], dict[str, torch.Tensor]]:
    """The tensors of a rank's file: its own of each shared part, and those of its rank state."""
    own: dict[str, dict[str, torch.Tensor]] = {}
    for part in SHARED:
        prefix = f"{OWN}.{part}."
        own[part] = {name.removeprefix(prefix): t for name, t in stored.items() if name.startswith(prefix)}
    return own, {name: t for name, t in stored.items() if not name.startswith(f"{OWN}.")}
