"""What one walk over a tree tells the next: state has the same thousands of tensors at every save."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch


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


@dataclass
class Memory:
    """Of one tree that is flattened again and again.

    Attributes:
        known: by dotted path.
        addresses: of all tensors, in the order of the walk.
        plan: the same object as long as names, signatures and aliases of all tensors are.
    """

    known: dict[str, Known] = field(default_factory=dict)
    addresses: list[int] = field(default_factory=list)
    plan: object = field(default_factory=object)

    def has_same_aliases(self, addresses: list[int]) -> bool:
        """Whether tensors that are all known share memory as they did, given where they begin now."""
        return addresses == self.addresses or _pattern(addresses) == _pattern(self.addresses)


def _pattern(addresses: list[int]) -> list[int]:
    """For each address the index of its first occurrence."""
    first: dict[int, int] = {}
    return [first.setdefault(address, index) for index, address in enumerate(addresses)]
