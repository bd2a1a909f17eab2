"""Random generators that datasets, transforms and collate functions own.

They are found by walking attributes, containers, closures and partials, in an order that depends only on how the
object is built, so the same object finds the same generators in every process and each gets the same seed.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import random
import types
from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias

import numpy as np
import torch

from resume_core.capture.rng import derive

__all__ = ["GeneratorLike", "find_generators", "find_global_generators", "seed_generators"]

GeneratorLike: TypeAlias = np.random.Generator | np.random.RandomState | torch.Generator | random.Random

_KINDS = (np.random.Generator, np.random.RandomState, torch.Generator, random.Random)
_MAX_ITEMS = 256  # longer containers hold data, not transforms
_MAX_OBJECTS = 10_000  # far more than transforms are made of; what is near is found first
_LEAVES = (
    str,
    bytes,
    int,
    float,
    complex,
    bool,
    type(None),
    type,
    types.ModuleType,
    torch.Tensor,
    np.ndarray,
    np.generic,
)


def _shared() -> tuple[object, ...]:
    """The global generators: seeded apart, never as something that a dataset owns."""
    return (torch.default_generator, getattr(np.random.mtrand, "_rand", None), getattr(random, "_inst", None))


def _function_parts(value: types.FunctionType) -> Iterator[Any]:
    for cell in value.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # a name not yet assigned
            continue
    yield from value.__defaults__ or ()
    yield from (value.__kwdefaults__ or {}).values()


def _items(value: Any) -> Iterable[Any]:
    """What a container or callable holds; code of the user's own is not run."""
    if isinstance(value, types.FunctionType):
        return _function_parts(value)
    if isinstance(value, types.MethodType):
        return (value.__self__, value.__func__)
    if isinstance(value, types.BuiltinMethodType):
        return (value.__self__,)
    if isinstance(value, functools.partial):
        return (value.func, *value.args, *value.keywords.values())
    if isinstance(value, dict):
        return dict.values(value) if len(value) <= _MAX_ITEMS else ()
    for kind in (list, tuple, set, frozenset):
        if isinstance(value, kind):
            return kind.__iter__(value) if kind.__len__(value) <= _MAX_ITEMS else ()
    return ()


def _attributes(value: Any) -> Iterator[Any]:
    """Attributes of an object, in slots too, and those that its class holds for all its objects."""
    with contextlib.suppress(AttributeError):
        yield from object.__getattribute__(value, "__dict__").values()
    for cls in type(value).__mro__[:-1]:
        for member in tuple(cls.__dict__.values()):
            if isinstance(member, types.MemberDescriptorType):
                with contextlib.suppress(AttributeError):  # a slot not yet filled
                    yield member.__get__(value)
            elif isinstance(member, _KINDS):
                yield member


def _walk(root: Any) -> Iterator[Any]:
    """Every object reachable from ``root`` by ownership, breadth first, each once."""
    seen: set[int] = set()
    waiting = collections.deque([root])
    while waiting and len(seen) < _MAX_OBJECTS:
        value = waiting.popleft()
        if isinstance(value, _LEAVES) or id(value) in seen:
            continue
        seen.add(id(value))
        yield value
        if not isinstance(value, _KINDS):
            waiting.extend(_items(value))
            waiting.extend(_attributes(value))


def find_generators(root: Any) -> tuple[GeneratorLike, ...]:
    """The generators that ``root`` owns, in a stable order; the global ones are left out."""
    shared = {id(value) for value in _shared()}
    return tuple(value for value in _walk(root) if isinstance(value, _KINDS) and id(value) not in shared)


def _code_names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _code_names(constant)


def _functions(value: Any) -> Iterator[types.FunctionType]:
    if isinstance(value, types.FunctionType):
        yield value
    for cls in type(value).__mro__[:-1]:
        yield from (member for member in cls.__dict__.values() if isinstance(member, types.FunctionType))


def find_global_generators(root: Any) -> tuple[str, ...]:
    """Names of module-level generators that the code of ``root`` uses.

    They may be shared with the training loop, so reseeding them would move its draws; they are reported instead.

    Returns:
        Names like ``"my_module.rng"``, sorted.
    """
    shared = {id(value) for value in _shared()}
    names = set()
    for value in _walk(root):
        for function in _functions(value):
            for name in _code_names(function.__code__):
                found = function.__globals__.get(name)
                if isinstance(found, _KINDS) and id(found) not in shared:
                    names.add(f"{function.__module__}.{name}")
    return tuple(sorted(names))


def _seed_one(generator: GeneratorLike, seed: int) -> None:
    if isinstance(generator, torch.Generator):
        generator.manual_seed(seed >> 1)
    elif isinstance(generator, random.Random):
        generator.seed(seed)
    elif isinstance(generator, np.random.RandomState):
        generator.seed(seed & 0xFFFFFFFF)
    else:
        # a Generator has no seed(): a fresh bit generator of its own kind supplies the state
        generator.bit_generator.state = type(generator.bit_generator)(seed).state


def seed_generators(generators: Iterable[GeneratorLike], seed: int) -> None:
    """Seed each generator from ``seed`` and its place in the order."""
    for place, generator in enumerate(generators):
        _seed_one(generator, derive(seed, place))
