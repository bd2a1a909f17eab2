"""What is around the tensors of a checkpoint, leaf by leaf, and which differences alter no training."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from resume_core.cli.diff.surroundings import Place, decides, folders_of, own_key
from resume_core.cli.source import Source
from resume_core.cli.tensors import Tensor, tensors_of
from resume_core.documents import OWN, STRUCTURE, TENSORS
from resume_core.errors import CorruptCheckpointError
from resume_core.storage.paths import parse_rank_file

__all__ = ["ABSENT", "Leaf", "Leaves", "Pair", "leaves_of", "pairs_of"]

ABSENT = "(absent)"
"""Stands for what one side does not have."""

_KINDS = ("tensor", "parameter", "numpy.ndarray")


@dataclass(frozen=True)
class Pair:
    """One thing that is not the same on both sides.

    Attributes:
        name: of a file, a tensor, or a dotted place.
        a: what the first side has, as text.
        b: what the second one has.
        file: that it is in.
        is_information: whether training would go on alike all the same, see `surroundings`.
    """

    name: str
    a: str
    b: str
    file: str = ""
    is_information: bool = False


@dataclass(frozen=True)
class Leaf:
    """A value, or a tensor as its entry tells it.

    Attributes:
        text: the value as JSON, or type, shape and strides of the tensor.
        file: that holds it.
        decides: what of the value decides the training; None where nothing does.
        tensor: its name there; empty for a value.
    """

    text: str
    file: str
    decides: str | None
    tensor: str = ""


Leaves = Mapping[Place, Leaf]
"""By place; a file in a folder of the run's that is a key stands there by its place in that."""


def leaves_of(source: Source) -> dict[Place, Leaf]:
    """All of a checkpoint that is whole.

    Raises:
        CorruptCheckpointError: a file is damaged, or nested too deep.
        OSError: no store that holds it can be read.
    """
    folders = folders_of(source.structure)
    try:
        found = {
            place: leaf for part, node in source.structure.items() for place, leaf in _of_part(part, node, folders)
        }
        for record in source.manifest.files:
            if record.name.endswith(".json") and (rank := parse_rank_file(record.name)) is not None:
                walk, document = _Walk(record.name, folders), source.document(record.name, {"rank"})
                found |= {(f"rank {rank}", *place): leaf for place, leaf in _of_rank(document, walk)}
    except RecursionError as error:
        path = source.ref.path
        raise CorruptCheckpointError(f"the structure of {path} is nested too deep", path=path) from error
    return found


def _of_part(part: str, node: Any, folders: Collection[str]) -> Iterator[tuple[Place, Leaf]]:
    for place, leaf in _Walk(STRUCTURE, folders).leaves(node, (part,)):
        if part not in TENSORS:  # what was recorded for people
            yield place, replace(leaf, decides=None)
        elif leaf.tensor:
            yield place, replace(leaf, file=TENSORS[part])
        else:
            yield place, leaf


def _of_rank(document: Mapping[str, Any], walk: _Walk) -> Iterator[tuple[Place, Leaf]]:
    for part, node in document.items():
        if part != OWN or not isinstance(node, dict):
            yield from walk.leaves(node, (part,))
            continue
        for shared, mine in node.items():
            whole = mine.get("structure") if isinstance(mine, dict) else None
            yield from (((OWN, *place), leaf) for place, leaf in walk.leaves(whole, (shared,)))
            rest = {key: child for key, child in mine.items() if key != "structure"} if isinstance(mine, dict) else mine
            yield from walk.leaves(rest, (OWN, shared, "tensors"))


class _Walk:
    """Through one file of JSON.

    Attributes:
        file: its name.

    Args:
        file: its name.
        folders: of the run's own, see `folders_of`.
    """

    def __init__(self, file: str, folders: Collection[str]) -> None:
        self.file, self._folders = file, folders

    def leaves(
        self, node: Any, place: Place, parent: Mapping[str, Any] = MappingProxyType({})
    ) -> Iterator[tuple[Place, Leaf]]:
        """Those below ``node``, which lies at ``place``, a member of the object ``parent``."""
        if isinstance(node, dict) and "$" not in node:
            for key, child in node.items():
                yield from self.leaves(child, (*place, own_key(place, parent, key, self._folders)), node)
        elif isinstance(node, list):
            for index, child in enumerate(node):
                yield from self.leaves(child, (*place, str(index)))
        elif isinstance(node, dict) and "items" in node:
            yield from self.leaves(node["items"], place, parent)
        elif isinstance(node, dict) and node.get("$") in _KINDS:
            for tensor in tensors_of(node, ".".join(place)):
                yield place, Leaf(_described(tensor), self.file, _described(tensor), tensor.name)
        else:
            text = json.dumps(node, ensure_ascii=False)
            yield place, Leaf(text, self.file, decides(place, node, parent, self._folders))


def _described(tensor: Tensor) -> str:
    stride = tensor.node.get("stride")
    return f"{tensor.kind}, strides {stride}" if stride else tensor.kind


def pairs_of(left: Leaves, right: Leaves) -> tuple[list[Pair], list[Pair]]:
    """What is not the same: tensors by type, shape or presence, and plain values."""
    structure, plain = list[Pair](), list[Pair]()
    for place in dict.fromkeys([*left, *right]):
        leaves = [side[place] for side in (left, right) if place in side]
        if len(leaves) == 2 and leaves[0].text == leaves[1].text:
            continue
        texts = [side[place].text if place in side else ABSENT for side in (left, right)]
        pair = Pair(_name(place, leaves[0]), texts[0], texts[1], leaves[0].file, _is_information(leaves))
        (structure if leaves[0].tensor else plain).append(pair)
    return structure, plain


def _name(place: Place, leaf: Leaf) -> str:
    """As it is shown: the training's own state is what nearly all of it is."""
    part, *steps = place
    if leaf.tensor and part in TENSORS:
        return f"{part}:{'.'.join(place if part == 'model' else steps)}"
    return ".".join(steps if part == "training" else place)


def _is_information(leaves: list[Leaf]) -> bool:
    first = leaves[0].decides
    return all(leaf.decides == first for leaf in leaves) and (first is None or len(leaves) == 2)
