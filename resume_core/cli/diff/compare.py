"""Two checkpoints side by side: configuration, files, structure, plain values, and the values of their tensors."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from resume_core.capture.runconfig import diff as config_diff
from resume_core.cli.diff.values import Change, changes
from resume_core.cli.names import split_url
from resume_core.cli.source import Source, find
from resume_core.cli.tensors import tensors_of
from resume_core.errors import CorruptCheckpointError
from resume_core.saved_header import header_of

__all__ = ["FILES", "Compared", "Pair", "compare", "sources"]

FILES = {"model": "model.safetensors", "training": "training.safetensors"}
_ABSENT = "(absent)"


@dataclass(frozen=True)
class Pair:
    """One thing that is not the same on both sides.

    Attributes:
        name: of a file, a tensor, or a dotted place.
        a: what the first side has, as text.
        b: what the second one has.
    """

    name: str
    a: str
    b: str


@dataclass(frozen=True)
class Compared:
    """What is different. Each list is empty where nothing is.

    Attributes:
        a: path, place in the run and directory of the first checkpoint.
        b: of the second one.
        config: facts of the configuration, each with its severity.
        files: that are not the same bytes, or that only one has.
        structure: tensors that only one has, or that have another type or shape.
        plain: values of the training state that are no tensors: counters, schedules.
        tensors: by file, those with other elements, the largest relative change first; None where they were not read.
    """

    a: dict[str, Any]
    b: dict[str, Any]
    config: list[dict[str, Any]]
    files: list[Pair]
    structure: list[Pair]
    plain: list[Pair]
    tensors: dict[str, list[Change]] | None

    @property
    def is_same(self) -> bool:
        """Whether training would go on alike from both, as far as what is compared here tells."""
        decisive = [one for one in self.config if one["severity"] != "info"]
        return not (decisive or self.files)

    def as_json(self) -> dict[str, Any]:
        """Strict JSON."""
        return asdict(self) | {"is_same": self.is_same}


def sources(a: str, b: str, *, options: Mapping[str, Any] | None = None) -> tuple[Source, Source]:
    """The checkpoints that two URLs name; the second may be a name in the run of the first.

    Raises:
        CheckpointNotFoundError: there is no such checkpoint.
        CorruptCheckpointError: its manifest cannot be used.
        ValueError: a URL that cannot be meant.
        OSError: a store cannot be read.
    """
    root, name = split_url(b)
    if root == "." and name and not os.path.lexists(b):
        b = f"{split_url(a)[0]}/{name}"
    return find(a, options=options), find(b, options=options)


def compare(a: Source, b: Source, progress: Callable[[str, int, int], None] | None) -> Compared:
    """What is different between two checkpoints.

    Args:
        a: the one.
        b: the other.
        progress: told the file, the bytes that were compared, and of how many; None to read no tensors.

    Raises:
        CorruptCheckpointError: one of them is damaged.
        OSError: a store cannot be read.
    """
    facts = [
        difference.as_dict() for difference in config_diff(header_of(a.manifest).config, header_of(b.manifest).config)
    ]
    structure, plain = list[Pair](), list[Pair]()
    if not a.is_thinned and not b.is_thinned:
        structure = [pair for part in FILES for pair in _structure(a, b, part)]
        plain = list(_pairs(_plain(a), _plain(b)))
    tensors = None
    if progress is not None:
        tensors = {part: _tensors(a, b, part, progress) for part in FILES if _both_have(a, b, FILES[part])}
    return Compared(_side(a), _side(b), facts, list(_files(a, b)), structure, plain, tensors)


def _side(source: Source) -> dict[str, Any]:
    header = source.manifest.header
    return {
        "path": source.ref.path,
        "url": source.stores[-1].url,
        "progress": asdict(source.progress),
        "time": header.get("time"),
        "metrics": header.get("metrics"),
        "weights_only": source.is_thinned,
    }


def _files(a: Source, b: Source) -> Iterator[Pair]:
    left, right = ({record.name: record for record in source.manifest.files} for source in (a, b))
    for name in dict.fromkeys([*left, *right]):
        one, two = left.get(name), right.get(name)
        if one != two:
            words = [f"{record.size_bytes} bytes" if record else _ABSENT for record in (one, two)]
            yield Pair(name, *words)


def _structure(a: Source, b: Source, part: str) -> Iterator[Pair]:
    left, right = (
        {
            tensor.name: _described(tensor.kind, tensor.node)
            for tensor in tensors_of(_part(source, part), source.ref.path)
        }
        for source in (a, b)
    )
    yield from _pairs(left, right)


def _described(kind: str, node: Mapping[str, Any]) -> str:
    return f"{kind}, strides {node['stride']}" if node.get("stride") else kind


def _pairs(left: Mapping[str, str], right: Mapping[str, str]) -> Iterator[Pair]:
    for name in dict.fromkeys([*left, *right]):
        one, two = left.get(name, _ABSENT), right.get(name, _ABSENT)
        if one != two:
            yield Pair(name, one, two)


def _part(source: Source, part: str) -> Any:
    return source.structure[part]


def _plain(source: Source) -> dict[str, str]:
    """What a training state holds beside tensors, by dotted place."""
    try:
        return dict(_leaves(_part(source, "training"), ""))
    except RecursionError as error:
        path = source.ref.path
        raise CorruptCheckpointError(f"the structure of {path} is nested too deep", path=path) from error


def _leaves(node: Any, place: str) -> Iterator[tuple[str, str]]:
    if isinstance(node, dict) and "$" not in node:
        for key, child in node.items():
            yield from _leaves(child, f"{place}.{key}" if place else key)
    elif isinstance(node, list):
        for index, child in enumerate(node):
            yield from _leaves(child, f"{place}.{index}")
    elif isinstance(node, dict) and "items" in node:
        yield from _leaves(node["items"], place)
    elif not (isinstance(node, dict) and node.get("$") in ("tensor", "parameter", "numpy.ndarray")):
        yield place, json.dumps(node, ensure_ascii=False)


def _both_have(a: Source, b: Source, name: str) -> bool:
    return all(any(record.name == name for record in source.manifest.files) for source in (a, b))


def _tensors(a: Source, b: Source, part: str, progress: Callable[[str, int, int], None]) -> list[Change]:
    found = changes(a, b, FILES[part], lambda done, total: progress(FILES[part], done, total))
    return sorted(found, key=lambda change: (change.relative is not None, -(change.relative or 0.0)))
