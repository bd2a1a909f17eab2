"""A module's ``state_dict``: its size, the shapes that must stay, and the versions that loading asks for."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from resume_core.errors import UnsupportedStateError

__all__ = ["refuse_new_shapes", "shapes", "size_bytes", "versioned", "versions", "with_versions"]

_LAZY = "not initialised"


def size_bytes(weights: Mapping[str, Any]) -> int:
    """Of the tensors in a ``state_dict``."""
    tensors = [w for w in weights.values() if isinstance(w, torch.Tensor) and not is_lazy(w)]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def shapes(weights: Mapping[str, Any]) -> dict[str, Any]:
    """Of the tensors in a ``state_dict``, by name."""
    tensors = {name: value for name, value in weights.items() if isinstance(value, torch.Tensor)}
    return {name: _LAZY if is_lazy(value) else value.shape for name, value in tensors.items()}


def refuse_new_shapes(before: Mapping[str, Any], weights: Mapping[str, Any]) -> None:
    """Refuse weights that a new process could not load.

    Raises:
        UnsupportedStateError: one has appeared, gone or changed its shape since `shapes` gave ``before``.
    """
    now = shapes(weights)
    changed = before.keys() ^ now.keys() | {name for name in before.keys() & now.keys() if before[name] != now[name]}
    # a lazy module takes its shape on loading
    changed = {name for name in changed if before.get(name) is not _LAZY}
    if changed:
        name = min(changed)
        raise UnsupportedStateError(
            f"model.{name} has appeared, gone or changed its shape since training began, so a new process could "
            "not load it; give buffers their final shape in __init__, or keep them out with persistent=False",
            path=f"model.{name}",
        )


def versioned(module: torch.nn.Module, weights: Mapping[str, torch.Tensor]) -> OrderedDict[str, torch.Tensor]:
    """Weights with the versions of the modules, without which some convert them as if from an old release."""
    found = OrderedDict(weights)
    found._metadata = getattr(module.state_dict(), "_metadata", {})  # type: ignore[attr-defined]
    return found


_FIRST = {"version": 1}  # what a module of torch says of itself unless its class says otherwise


def versions(weights: Mapping[str, torch.Tensor]) -> dict[str, dict[str, Any]]:
    """Of a ``state_dict``, by the names of modules: what it says of their versions, where that is not the usual."""
    metadata = getattr(weights, "_metadata", None) or {}
    return {name: dict(said) for name, said in metadata.items() if said != _FIRST}


def with_versions(
    weights: Mapping[str, torch.Tensor], saved: Mapping[str, Mapping[str, Any]]
) -> OrderedDict[str, torch.Tensor]:
    """Weights with what `versions` gave, for modules that are not at hand."""
    found = OrderedDict(weights)
    parts = [name.split(".")[:-1] for name in weights]
    modules = {".".join(path[:end]) for path in parts for end in range(len(path) + 1)}
    metadata = {name: dict(saved.get(name, _FIRST)) for name in sorted(modules)}
    found._metadata = OrderedDict(metadata)  # type: ignore[attr-defined]
    return found
