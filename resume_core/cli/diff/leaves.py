"""What is around the tensors of a checkpoint, leaf by leaf, and which differences alter no training.

Two runs of one command in two folders hold other paths, and whatever a clock or a machine gave them. Such values are
told apart from counters, schedules and positions, which decide what is trained next.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from resume_core.cli.source import Source
from resume_core.cli.tensors import Tensor, tensors_of
from resume_core.errors import CorruptCheckpointError
from resume_core.storage.paths import parse_rank_file

__all__ = ["ABSENT", "Leaf", "Leaves", "Pair", "leaves_of", "pairs_of"]

ABSENT = "(absent)"
"""Stands for what one side does not have."""

_TENSORS = {"model": "model.safetensors", "training": "training.safetensors"}
_STRUCTURE = "training.json"
_KINDS = ("tensor", "parameter", "numpy.ndarray")
# a step of a place: what clocks, machines and installed packages give
_SURROUNDINGS = re.compile(
    r"(?:since_s|(?:\w+_)?time(?:stamp)?|(?:time_)?elapsed\w*|\w*runtime|\w+_per_second|host(?:name)?|pid|"
    r"(?:run_)?id|uuid|token|[\w-]+_version)",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Pair:
    """One thing that is not the same on both sides.

    Attributes:
        name: of a file, a tensor, or a dotted place.
        a: what the first side has, as text.
        b: what the second one has.
        file: that it is in.
        is_information: whether training would go on alike all the same: a path, a time, a host, a version.
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
        tensor: its name there; empty for a value.
        is_information: whether it decides nothing, whatever it says.
    """

    text: str
    file: str
    tensor: str = ""
    is_information: bool = False


Leaves = Mapping[str, Leaf]
"""By dotted place; a path that is a key stands there by its last part, so that it is found on the other side."""


def leaves_of(source: Source) -> dict[str, Leaf]:
    """All of a checkpoint that is whole.

    Raises:
        CorruptCheckpointError: a file is damaged, or nested too deep.
        OSError: no store that holds it can be read.
    """
    try:
        found = {place: leaf for part, node in source.structure.items() for place, leaf in _of_part(part, node)}
        for record in source.manifest.files:
            if record.name.endswith(".json") and (rank := parse_rank_file(record.name)) is not None:
                found |= _walk(source.document(record.name, {"rank"}), f"rank {rank}", record.name)
    except RecursionError as error:
        path = source.ref.path
        raise CorruptCheckpointError(f"the structure of {path} is nested too deep", path=path) from error
    return found


def _of_part(part: str, node: Any) -> Iterator[tuple[str, Leaf]]:
    if part not in _TENSORS:  # what was recorded for people
        for place, leaf in _walk(node, part, _STRUCTURE):
            yield place, Leaf(leaf.text, leaf.file, is_information=True)
        return
    for place, leaf in _walk(node, "" if part == "training" else part, _STRUCTURE):
        yield (place, leaf) if not leaf.tensor else (f"{part}:{place}", Leaf(leaf.text, _TENSORS[part], leaf.tensor))


def _walk(node: Any, place: str, file: str) -> Iterator[tuple[str, Leaf]]:
    if isinstance(node, dict) and "$" not in node:
        for key, child in node.items():
            name = re.split(r"[/\\]", key)[-1] or key
            yield from _walk(child, f"{place}.{name}" if place else name, file)
    elif isinstance(node, list):
        for index, child in enumerate(node):
            yield from _walk(child, f"{place}.{index}", file)
    elif isinstance(node, dict) and "items" in node:
        yield from _walk(node["items"], place, file)
    elif isinstance(node, dict) and node.get("$") in _KINDS:
        for tensor in tensors_of(node, place):
            yield place, Leaf(_described(tensor), file, tensor.name)
    else:
        yield place, Leaf(json.dumps(node, ensure_ascii=False), file)


def _described(tensor: Tensor) -> str:
    stride = tensor.node.get("stride")
    return f"{tensor.kind}, strides {stride}" if stride else tensor.kind


def pairs_of(left: Leaves, right: Leaves) -> tuple[list[Pair], list[Pair]]:
    """What is not the same: tensors by type, shape or presence, and plain values."""
    structure, plain = list[Pair](), list[Pair]()
    for place in dict.fromkeys([*left, *right]):
        one, two = left.get(place), right.get(place)
        if one is not None and two is not None and one.text == two.text:
            continue
        known = one or two
        assert known is not None
        texts = [ABSENT if leaf is None else leaf.text for leaf in (one, two)]
        pair = Pair(place, texts[0], texts[1], known.file, known.is_information or _is_surroundings(place, texts))
        (structure if known.tensor else plain).append(pair)
    return structure, plain


def _is_surroundings(place: str, texts: list[str]) -> bool:
    """Whether a value is one that a clock, a machine, or the folder of a run has given."""
    return any(map(_SURROUNDINGS.fullmatch, place.split("."))) or all(map(_is_path, texts))


def _is_path(text: str) -> bool:
    """Whether JSON is a path or a URL; empty, or nothing, where the other side has one."""
    return text[:1] == '"' and ("/" in text or "\\\\" in text)
