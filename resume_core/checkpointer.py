"""Where state, image and storage meet: stages a state, writes it as a checkpoint, and reads one back."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from resume_core.errors import CorruptCheckpointError
from resume_core.image import Arena, FileSpec, Flat, Image, Stager, dumps, flatten, loads, parse, unflatten
from resume_core.state import State
from resume_core.storage import (
    CheckpointRef,
    CheckpointWriter,
    Manifest,
    Slot,
    Store,
    rank_file,
    read_file,
)

__all__ = ["Checkpointer", "Pending"]

_MODEL = "model.safetensors"
_TRAINING = "training.safetensors"
_STRUCTURE = "training.json"


@dataclass(frozen=True)
class Pending:
    """A staged checkpoint: its files in memory, not yet on the store.

    Attributes:
        images: files that lie in the arena, valid until the next one is staged.
        documents: small files by name.
        header: what the manifest will say about it.
        stage_s: seconds that staging kept training waiting.
    """

    images: list[Image]
    documents: Mapping[str, bytes]
    header: Mapping[str, Any]
    stage_s: float

    @property
    def size_bytes(self) -> int:
        """Bytes of all its files."""
        return sum(image.size_bytes for image in self.images) + sum(map(len, self.documents.values()))

    def write(self, store: Store, slot: Slot, *, still_newest: Callable[[], object]) -> Manifest:
        """Write the files and commit them; runs in the background. What was written is removed when it fails.

        Raises:
            SupersededError: a newer attempt has started; nothing was committed.
            SaveFailedError: see `CheckpointWriter.commit`.
            OSError: the store refused.
        """
        writer = CheckpointWriter(store, slot)
        start = time.perf_counter()
        try:
            for image in self.images:
                image.finish()
                writer.write_file(image.name, image.buffer)
            for name, document in self.documents.items():
                writer.write_file(name, document)
            writer.write_part()
            timings = {"stage_s": self.stage_s, "write_s": time.perf_counter() - start}
            return writer.commit({**self.header, "timings": timings}, still_newest=still_newest)
        except BaseException:
            writer.discard()
            raise


class Checkpointer:
    """Saves and restores, nothing else.

    Args:
        store: where checkpoints are.
        rank: whose ``rank-`` files are written and read.
    """

    def __init__(self, store: Store, *, rank: int = 0) -> None:
        self.store = store
        self._rank = rank
        self._stager = Stager(Arena())
        self._names = {
            "model": _MODEL,
            "training": _TRAINING,
            "rank": rank_file(rank, ".safetensors"),
            "rank.json": rank_file(rank, ".json"),
        }

    def check(self, state: State) -> None:
        """Find out whether ``state`` can be saved, without copying it.

        Raises:
            UnsupportedStateError: a value that no checkpoint can hold; names its place.
        """
        _flatten(state)

    def stage(self, state: State, header: Mapping[str, Any]) -> Pending:
        """Copy ``state`` into the arena. Training may go on when this returns.

        The images of the call before are overwritten: call it only when they are written.

        Raises:
            UnsupportedStateError: a value that no checkpoint can hold; names its place.
        """
        start = time.perf_counter()
        flat = _flatten(state)
        images = self._stager.stage(
            [
                FileSpec(self._names["model"], flat["model"].tensors, plain=True, metadata=flat["model"].aliases),
                FileSpec(self._names["training"], flat["training"].tensors),
                FileSpec(self._names["rank"], flat["rank"].tensors),
            ]
        )
        info = flatten(dict(state.info), lenient=True).structure
        structure = {"model": flat["model"].structure, "training": flat["training"].structure, "info": info}
        documents = {_STRUCTURE: dumps(structure), self._names["rank.json"]: dumps(flat["rank"].structure)}
        return Pending(images, documents, header, time.perf_counter() - start)

    def read(self, ref: CheckpointRef, manifest: Manifest) -> State:
        """Read a checkpoint, every chunk checked against its digest.

        Raises:
            CorruptCheckpointError: a file is missing, torn, altered or cannot be understood.
            UnsupportedStateError: a leaf of the user's own that is not registered in this process.
            OSError: the store cannot be read.
        """
        structure = self._document(ref, manifest, _STRUCTURE)
        if not isinstance(structure, dict) or not {"model", "training"} <= structure.keys():
            raise CorruptCheckpointError(f"{ref.path}/{_STRUCTURE} lacks the structure it is for", path=ref.path)
        rank = self._document(ref, manifest, self._names["rank.json"])
        return State(
            model=self._tree(ref, manifest, self._names["model"], structure["model"]),
            training=self._tree(ref, manifest, self._names["training"], structure["training"]),
            rank=self._tree(ref, manifest, self._names["rank"], rank),
        )

    def _document(self, ref: CheckpointRef, manifest: Manifest, name: str) -> Any:
        return loads(bytes(read_file(self.store, ref, manifest.file(name))), path=f"{ref.path}/{name}")

    def _tree(self, ref: CheckpointRef, manifest: Manifest, name: str, structure: Any) -> Any:
        path = f"{ref.path}/{name}"
        stored = parse(read_file(self.store, ref, manifest.file(name)), path=path)
        # tensors of their own: views would keep the whole file in memory as long as one of them lives
        tensors: dict[str, torch.Tensor] = {key: tensor.clone() for key, tensor in stored.items()}
        return unflatten(structure, tensors, plain=name == _MODEL, path=path)


def _flatten(state: State) -> dict[str, Flat]:
    # the file of the weights is used alone, with the names that the state_dict has
    paths = {"model": "", "training": "training", "rank": "rank"}
    return {part: flatten(getattr(state, part), path=path) for part, path in paths.items()}
