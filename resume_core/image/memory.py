"""What one walk over a tree tells the next: state has the same thousands of tensors at every save."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

TENSORS = {torch.Tensor, torch.nn.Parameter}
"""The classes of tensor that state is made of; other subclasses are refused."""

_DICTS = {dict, OrderedDict}


class Known(NamedTuple):
    """A tensor as it was found at one place of the tree.

    Attributes:
        signature: see :func:`signature`.
        name: of its entry.
        first: name of the first tensor that was the same view; ``name`` when there was none before it.
        node: its JSON.
    """

    signature: tuple[Any, ...]
    name: str
    first: str
    node: dict[str, Any]


def signature(tensor: torch.Tensor) -> tuple[Any, ...] | None:
    """All that decides a tensor's JSON and its place in a file; None for what has no strides."""
    try:
        return (
            type(tensor),
            tensor.dtype,
            tensor.shape,
            tensor.stride(),
            tensor.device,
            tensor.requires_grad,
        )
    except RuntimeError:  # sparse, nested
        return None


class KnownDict(NamedTuple):
    """A dict as it was found at one place, in which there are only tensors: a model's own, the moments of a parameter;
    or only such dicts: the state of an optimizer. What is compared and remembered of it is so in a few calls for all.

    Attributes:
        kind: its class.
        keys: of it, each with its class.
        rows: of the dicts in it, each with its class and its keys; None where it holds the tensors itself.
        signatures: of all tensors.
        names: of their entries, none of them an alias.
        known: the tensors by dotted path.
        node: its JSON.
    """

    kind: type
    keys: list[tuple[type, Any]]
    rows: list[tuple[type, tuple[str, ...]]] | None
    signatures: list[Any]
    names: list[str]
    known: dict[str, Known]
    node: Any

    @classmethod
    def of_tensors(cls, value: dict[Any, Any], node: Any, known: dict[str, Known]) -> KnownDict | None:
        """That of a dict of tensors that was just walked; None where one of them is an alias.

        Args:
            value: the dict.
            node: its JSON.
            known: what its values were found to be, by dotted path.
        """
        tensors = known.values()
        if any(one.first != one.name for one in tensors):
            return None
        signatures, names = [one.signature for one in tensors], [one.name for one in tensors]
        return cls(type(value), _keys(value), None, signatures, names, known, node)

    @classmethod
    def of_dicts(cls, value: dict[Any, Any], node: Any, inner: list[KnownDict]) -> KnownDict:
        """That of a dict of dicts of tensors that was just walked; ``inner`` are those of its values."""
        return cls(
            type(value),
            _keys(value),
            _rows(value.values()),
            [one for row in inner for one in row.signatures],
            [one for row in inner for one in row.names],
            {path: one for row in inner for path, one in row.known.items()},
            node,
        )

    @property
    def is_row(self) -> bool:
        """Whether it holds tensors under text alone: the keys of rows are compared without their classes."""
        return self.rows is None and {kind for kind, _ in self.keys} == {str}

    def tensors(self, value: dict[Any, Any]) -> list[torch.Tensor] | None:
        """The tensors of ``value``, detached from autograd; None unless everything is as it was."""
        if type(value) is not self.kind or _keys(value) != self.keys:
            return None
        rows = [value]
        if self.rows is not None:
            rows = [*value.values()]
            if not {*map(type, rows)} <= _DICTS or _rows(rows) != self.rows:
                return None
        found = [tensor for row in rows for tensor in row.values()]
        if not {*map(type, found)} <= TENSORS or [*map(signature, found)] != self.signatures:
            return None
        return [tensor.detach() if tensor.requires_grad else tensor for tensor in found]


def _keys(value: dict[Any, Any]) -> list[tuple[type, Any]]:
    return [*zip(map(type, value), value, strict=True)]  # 1 and True are equal


def _rows(rows: Iterable[dict[Any, Any]]) -> list[tuple[type, tuple[str, ...]]]:
    return [(type(row), tuple(row)) for row in rows]


@dataclass
class Memory:
    """Of one tree that is flattened again and again.

    Attributes:
        known: by dotted path.
        dicts: likewise.
        addresses: of all tensors, in the order of the walk.
        plan: the same object as long as names, signatures and aliases of all tensors are.
    """

    known: dict[str, Known] = field(default_factory=dict)
    dicts: dict[str, KnownDict] = field(default_factory=dict)
    addresses: list[int] = field(default_factory=list)
    plan: object = field(default_factory=object)

    def has_same_aliases(self, addresses: list[int]) -> bool:
        """Whether tensors that are all known share memory as they did, given where they begin now."""
        return addresses == self.addresses or _pattern(addresses) == _pattern(self.addresses)


def _pattern(addresses: list[int]) -> list[int]:
    """For each address the index of its first occurrence."""
    first: dict[int, int] = {}
    return [first.setdefault(address, index) for index, address in enumerate(addresses)]
