"""The tensors of a checkpoint as its structure tells them: nothing but a small JSON file is read."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from resume_core.errors import CorruptCheckpointError

__all__ = ["Tensor", "groups", "tensors_of"]

_KINDS = ("tensor", "parameter")
_BITS = re.compile(r"[a-z]+([0-9]+)")


@dataclass(frozen=True)
class Tensor:
    """One tensor of a structure.

    Attributes:
        name: in its file.
        dtype: as in ``float32``.
        shape: its own, not that of the file.
        size_bytes: of its elements.
        node: the structure's entry.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    size_bytes: int
    node: Mapping[str, Any]

    @property
    def kind(self) -> str:
        """As in ``float32[3, 4]``."""
        return f"{self.dtype}{list(self.shape)}"


def tensors_of(structure: Any, path: str = "") -> list[Tensor]:
    """The tensors that a part of a structure names, in its order; those that share memory once.

    Raises:
        CorruptCheckpointError: an entry that no release writes.
    """
    try:
        return list(_tensors(structure))
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise CorruptCheckpointError(f"the structure of {path} cannot be understood: {error!r}", path=path) from error


def _tensors(node: Any) -> Iterator[Tensor]:
    if isinstance(node, list):
        for child in node:
            yield from _tensors(child)
    elif isinstance(node, dict) and node.get("$") in _KINDS:
        if "alias" not in node:
            shape = tuple(map(int, node["shape"]))
            dtype = str(node["dtype"])
            yield Tensor(str(node["name"]), dtype, shape, math.prod(shape) * _item_bytes(dtype), node)
    elif isinstance(node, dict):
        for child in node.values():
            yield from _tensors(child)


def _item_bytes(dtype: str) -> int:
    """Of one element, by the name of its type, so that torch is not needed; those below a byte travel in one."""
    if dtype == "bool":
        return 1
    found = _BITS.match(dtype)
    if found is None:
        raise ValueError(f"the type {dtype!r:.80}")
    return max(int(found[1]) // 8, 1)


def groups(tensors: list[Tensor], part: str) -> dict[str, tuple[int, int]]:
    """How many tensors, and bytes, lie below each place of a part, the largest first."""
    counts, sizes = Counter[str](), Counter[str]()
    for tensor in tensors:
        group = _group(tensor.name.removeprefix(f"{part}."))
        counts[group] += 1
        sizes[group] += tensor.size_bytes
    return {group: (counts[group], size) for group, size in sizes.most_common()}


def _group(name: str) -> str:
    """The first two steps of a path, up to a number: ``checkpoint.optimizer_states``."""
    steps = name.split(".")[:2]
    return ".".join(step for place, step in enumerate(steps) if not place or not step.isdigit())
