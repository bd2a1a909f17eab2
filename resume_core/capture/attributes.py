"""Plain attributes that change during training and sit in no state: found, so that they can be named."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

import torch

__all__ = ["AttributeWatch"]

_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_MODULE_ATTRIBUTES = frozenset(vars(torch.nn.Module()))


class AttributeWatch:
    """Looks at attributes when training begins and tells later which of them have changed.

    Watched are plain values, tensors that are neither parameters nor buffers, and the length and members of lists,
    dicts and sets. Parameters, buffers, metrics and whatever a ``state_dict`` covers are saved and not looked at.

    Args:
        owners: name to object; of a `torch.nn.Module` its submodules are watched too.
        known: attribute names that belong to a framework and are its own business.
    """

    def __init__(self, owners: Mapping[str, Any], known: frozenset[str]) -> None:
        self._owners = dict(_with_submodules(owners))
        self._known = known | _MODULE_ATTRIBUTES
        self._before = self._look()
        self._told: set[str] = set()

    def changed(self) -> list[str]:
        """Attributes that differ from when training began, sorted; each is told once."""
        now = self._look()
        names = {name for name in now if name not in self._before or self._before[name] != now[name]}
        new = sorted(names - self._told)
        self._told |= names
        return new

    def _look(self) -> dict[str, Any]:
        return {
            f"{owner}.{name}": mark
            for owner, value in self._owners.items()
            for name, attribute in getattr(value, "__dict__", {}).items()
            if name not in self._known and (mark := _mark(attribute)) is not None
        }


def _with_submodules(owners: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    metric = getattr(sys.modules.get("torchmetrics"), "Metric", ())
    for name, owner in owners.items():
        yield name, owner
        if isinstance(owner, torch.nn.Module):
            yield from (
                (f"{name}.{path}", child)
                for path, child in owner.named_modules()
                if path and not isinstance(child, metric)
            )


def _mark(value: Any) -> Any:
    """Something that differs when ``value`` was changed or replaced, None for what is not watched."""
    if isinstance(value, torch.Tensor):
        return "tensor", id(value), value._version
    if isinstance(value, _PLAIN):
        return "plain", repr(value)
    if isinstance(value, (list, tuple, set, frozenset)):
        return type(value).__name__, len(value), [_mark(item) for item in list(value)[-1:]]
    if type(value) is dict:
        return "dict", len(value), [_mark(item) for item in list(value.values())[-1:]]
    return None
