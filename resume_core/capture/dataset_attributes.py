"""Scalars of training data that a hook or loop changes while it trains: a curriculum, which no state holds.

Looked at are numbers, strings and flags alone, as what else changes in data is a cache or an open file.
"""

from __future__ import annotations

import types
import weakref
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch

from resume_core.capture.kinds import is_a

__all__ = ["DatasetWatch", "names_in_state_hooks", "roots_of_loader"]

_SCALARS = (bool, int, float, str, type(None))
_MAX_OBJECTS = 1000
_MAX_DEPTH = 4  # of wrappers and composed transforms
_MAX_ITEMS = 256  # longer containers hold data
_NO_HOLDERS = (type, types.ModuleType, types.FunctionType, types.MethodType, torch.Tensor, np.ndarray, Mapping)
_OF_MODULES = frozenset(vars(torch.nn.Module()))
_HOOKS = ("state_dict", "load_state_dict", "on_save_checkpoint", "on_load_checkpoint", "state", "from_state")
_FRAMEWORKS = frozenset({"torch", "torchmetrics", "lightning", "pytorch_lightning", "transformers", "accelerate"})


class DatasetWatch:
    """Looks at public scalars of datasets, of those that they wrap, and of their transforms, and tells of changes.

    Args:
        roots: datasets, collate functions and the like, by name; nothing here keeps them alive.
        known: attribute names that are restored otherwise.
        others: objects that are watched elsewhere, by `id`.
    """

    def __init__(self, roots: Mapping[str, Any], known: Iterable[str] = (), others: Collection[int] = ()) -> None:
        self._known = _OF_MODULES | set(known)
        self._held = list(_held(roots, others))
        self._before = self._look()
        self._told: set[str] = set()

    def changed(self) -> list[str]:
        """Attributes that differ from when training began, sorted; each is told once."""
        before, now = self._before, self._look()
        names = {name for name, value in now.items() if name not in before or before[name] != value}
        new = sorted(names - self._told)
        self._told |= names
        return new

    def _look(self) -> dict[str, str]:
        return {
            f"{place}.{name}": repr(value)
            for place, held in self._held
            for name, value in list(getattr(held(), "__dict__", {}).items())
            if type(value) in _SCALARS and not name.startswith("_") and name not in self._known
        }


def _held(roots: Mapping[str, Any], others: Collection[int]) -> Iterator[tuple[str, weakref.ref[Any]]]:
    """What is watched, each object once, by the attributes that lead to it."""
    seen = set(others)
    waiting = [(name, root, 0) for name, root in roots.items()]
    for place, value, depth in waiting:
        if id(value) in seen or len(seen) > _MAX_OBJECTS + len(others) or not _is_holder(value):
            continue
        seen.add(id(value))
        try:
            yield place, weakref.ref(value)
        except TypeError:  # a class with slots
            continue
        if depth < _MAX_DEPTH:
            attributes = [(f"{place}.{name}", each) for name, each in vars(value).items() if name != "_modules"]
            waiting += [(name, each, depth + 1) for pair in attributes for name, each in _parts(*pair)]


def _parts(place: str, value: Any) -> Iterable[tuple[str, Any]]:
    if type(value) in (list, tuple) and len(value) <= _MAX_ITEMS:
        return [(f"{place}[{at}]", each) for at, each in enumerate(value)]
    if type(value) is dict and len(value) <= _MAX_ITEMS:
        return [(f"{place}[{key!r}]", each) for key, each in value.items()]
    return [(place, value)]


def _is_holder(value: Any) -> bool:
    """Whether it is a dataset or sequence, or a transform; nothing else that data refers to is looked into."""
    cls = type(value)  # and not the value itself, which may be a proxy
    is_data = is_a(value, torch.utils.data.Dataset) or hasattr(cls, "__getitem__") or hasattr(cls, "__call__")  # noqa: B004
    return is_data and cls.__dictoffset__ != 0 and not is_a(value, _NO_HOLDERS)


def roots_of_loader(name: str, loader: Any) -> dict[str, Any]:
    """What `DatasetWatch` looks at of a loader whose dataset has that name."""
    return {name: getattr(loader, "dataset", None), f"{name}'s collate_fn": getattr(loader, "collate_fn", None)}


def names_in_state_hooks(owners: Iterable[Any]) -> frozenset[str]:
    """What the user's hooks that save and load a state speak of: that a resume brings it back is up to them."""
    classes = {cls for owner in owners for cls in type(owner).__mro__[:-1]}
    members = [
        vars(cls)[hook]
        for cls in classes
        for hook in _HOOKS
        if hook in vars(cls) and cls.__module__.partition(".")[0] not in _FRAMEWORKS
    ]
    functions = [getattr(member, "__func__", member) for member in members]
    codes = [function.__code__ for function in functions if isinstance(function, types.FunctionType)]
    return frozenset(name for code in codes for name in (*code.co_names, *_texts(code.co_consts)))


def _texts(constants: Iterable[Any]) -> Iterator[str]:
    for value in constants:
        if isinstance(value, str):
            yield value
        elif isinstance(value, tuple):  # the keys of a dict
            yield from _texts(value)
