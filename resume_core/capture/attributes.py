"""Plain attributes that change during training and sit in no state: found, so that they can be named."""

from __future__ import annotations

import enum
import sys
import types
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from resume_core.capture.installed import is_installed
from resume_core.capture.kinds import is_a
from resume_core.capture.saved_tensors import Saved

__all__ = ["AttributeWatch", "changed_note"]

_PLAIN = (bool, int, float, complex, str, bytes, type(None), enum.Enum, np.generic)
_MODULE_ATTRIBUTES = frozenset(vars(torch.nn.Module()))
_FRAMEWORKS = frozenset({"torch", "torchmetrics", "lightning", "pytorch_lightning", "lightning_fabric", "numpy"})
_MAX_ITEMS = 32  # looked at in one container or array
_MAX_DEPTH = 4  # of objects that hold objects
_MAX_NAMES = 10  # told in one sentence


class AttributeWatch:
    """Looks at attributes when training begins and tells later which of them have changed.

    Watched are plain values, tensors that are neither parameters nor buffers, arrays, the length and members of lists,
    dicts and sets, modules that are not registered anywhere, and the same in objects of the user's own classes.
    Parameters, buffers, metrics and whatever a ``state_dict`` covers are saved and not looked at, wherever else they
    are held, nor are attributes of a module that has a ``get_extra_state`` of its own, nor what torch computes from
    parameters before each forward (weight norm); objects of libraries are their own business. Of large containers and
    arrays a sample is looked at.

    Args:
        owners: name to object; of a `torch.nn.Module` its submodules are watched too.
        known: attribute names that belong to a framework and are its own business.
        others: classes whose objects are not looked into, as they are saved or written elsewhere.
        saved: modules that are saved beside ``owners``.
    """

    def __init__(
        self,
        owners: Mapping[str, Any],
        known: frozenset[str],
        others: tuple[type, ...] = (),
        saved: Iterable[Any] = (),
    ) -> None:
        self._owners = dict(_with_submodules(owners))
        self._roots = (*owners.values(), *saved)
        self._known, self._others = known | _MODULE_ATTRIBUTES, (*_NO_HOLDERS, *others)
        self._packages = {_package(type(owner)) for owner in self._owners.values()} - _FRAMEWORKS
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
        found: dict[str, Any] = {}
        self._saved = Saved(self._roots)
        seen = {id(owner) for owner in self._owners.values()}
        for name, owner in self._owners.items():
            if _saves_itself(owner):
                continue
            self._look_into(name, owner, found, seen, 0)
        self.looked_into: Collection[int] = seen
        """By `id`, the objects whose attributes are watched."""
        return found

    def _look_into(self, place: str, holder: Any, found: dict[str, Any], seen: set[int], depth: int) -> None:
        for name, value in list(getattr(holder, "__dict__", {}).items()):
            if name in self._known or (is_a(value, torch.Tensor) and value in self._saved):
                continue
            mark = _mark(value, self._saved)
            if mark is not None:
                found[f"{place}.{name}"] = mark
            elif depth < _MAX_DEPTH and id(value) not in seen and self._is_own(value):
                seen.add(id(value))
                self._look_into(f"{place}.{name}", value, found, seen, depth + 1)

    def _is_own(self, value: Any) -> bool:
        """Whether a class is of the user's code: in the package of an owner, or in no installed one."""
        cls, package = type(value), _package(type(value))
        if is_a(value, (*self._others, torch.nn.Module)) or package in _FRAMEWORKS:
            return False
        if package in self._packages or package == "__main__":
            return True
        if package in sys.stdlib_module_names:
            return False
        file = getattr(sys.modules.get(cls.__module__), "__file__", None) or ""
        return not is_installed(file)


def _saves_itself(owner: Any) -> bool:
    """Whether a module puts what it likes into its ``state_dict``, where nobody knows which attribute it came from."""
    plain = torch.nn.Module
    return isinstance(owner, plain) and (
        type(owner).get_extra_state is not plain.get_extra_state
        or type(owner)._save_to_state_dict is not plain._save_to_state_dict
    )


_NO_HOLDERS = (type, types.FunctionType, types.MethodType, types.ModuleType)


def _package(cls: type) -> str:
    return cls.__module__.partition(".")[0]


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


def _mark(value: Any, saved: Saved) -> Any:
    """Something that differs when ``value`` was changed or replaced, None for what is not watched."""
    if is_a(value, torch.Tensor):
        return ("saved",) if value in saved else ("tensor", id(value), value._version)
    if is_a(value, _PLAIN):
        return "plain", repr(value)
    if is_a(value, np.ndarray):
        return "array", value.shape, value.ravel()[:: value.size // _MAX_ITEMS + 1].tolist()
    if is_a(value, (list, tuple, set, frozenset, deque)):
        return type(value).__name__, len(value), [_mark(item, saved) for item in _sample(value)]
    if is_a(value, dict):
        return type(value).__name__, len(value), [_mark(item, saved) for item in _sample(value.values())]
    if is_a(value, torch.nn.Module) and value not in saved:
        return "module", id(value), _versions(value, saved)
    return None


def _sample(items: Iterable[Any]) -> list[Any]:
    """Some of the members, evenly spaced, the last one always."""
    held = items if isinstance(items, Sequence) else list(items)
    step = len(held) // _MAX_ITEMS + 1
    return [held[place] for place in range(len(held) - 1, -1, -step)]


def _versions(module: torch.nn.Module, saved: Saved) -> list[Any]:
    """What moves when a module is trained or a metric is updated; it may be a wrapper of one that is saved."""
    held = (*module.parameters(), *module.buffers())
    tensors = [tensor._version for tensor in held if tensor not in saved]
    children = [child for child in module.modules() if child not in saved]
    return [*tensors, *(getattr(child, "_update_count", None) for child in children)]


def changed_note(names: Sequence[str], advice: str) -> str:
    """What to tell users of attributes that have changed.

    Args:
        names: of the attributes.
        advice: what to do where that matters, as the end of a sentence.
    """
    shown = ", ".join(names[:_MAX_NAMES]) + (", ..." if len(names) > _MAX_NAMES else "")
    return (
        f"attributes that change during training and are in no state: {shown}. After a resume they are as in a new "
        f"run. Where that matters, {advice}."
    )
