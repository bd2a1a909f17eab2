"""Random generators that datasets, transforms and collate functions own.

They are found by walking attributes, containers, closures and partials, in an order that depends only on how the
object is built, so the same object finds the same generators in every process and each gets the same seed.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import logging
import random
import types
from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias

import numpy as np
import torch

from resume_core.capture.rng import Stream, derive

__all__ = [
    "GENERATORS",
    "GeneratorLike",
    "OwnedStream",
    "apply_generators",
    "capture_generators",
    "find_generators",
    "find_global_generators",
    "seed_generators",
]

GeneratorLike: TypeAlias = np.random.Generator | np.random.RandomState | torch.Generator | random.Random

GENERATORS = (np.random.Generator, np.random.RandomState, torch.Generator, random.Random)
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
    logging.Logger,  # leads to every handler of the process
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
        return dict.values(value) if dict.__len__(value) <= _MAX_ITEMS else ()
    if isinstance(value, list):
        return list.__iter__(value) if list.__len__(value) <= _MAX_ITEMS else ()
    if isinstance(value, tuple):
        return tuple.__iter__(value) if tuple.__len__(value) <= _MAX_ITEMS else ()
    return value if type(value) in (set, frozenset) and len(value) <= _MAX_ITEMS else ()


def _of_class(cls: type) -> tuple[list[types.MemberDescriptorType], list[GeneratorLike]]:
    """The slots of a class, and the generators that it holds for all its objects."""
    members = [vars(base) for base in cls.__mro__[:-1]]
    slotted = [value for names in members if "__slots__" in names for value in names.values()]
    slots = [value for value in slotted if isinstance(value, types.MemberDescriptorType)]
    return slots, [value for names in members for value in names.values() if isinstance(value, GENERATORS)]


def _attributes(value: Any, classes: dict[type, Any]) -> Iterator[Any]:
    with contextlib.suppress(AttributeError):
        yield from object.__getattribute__(value, "__dict__").values()
    cls = type(value)
    if cls not in classes:
        classes[cls] = _of_class(cls)
    slots, generators = classes[cls]
    for slot in slots:
        with contextlib.suppress(AttributeError):  # not yet filled
            yield slot.__get__(value)
    yield from generators


def _walk(root: Any, closed: Iterable[object] = ()) -> Iterator[Any]:
    """Every object reachable from ``root`` by ownership, breadth first, each once; but not through ``closed``."""
    seen = {id(value) for value in closed}
    classes: dict[type, Any] = {}
    waiting = collections.deque([root])
    while waiting and len(seen) < _MAX_OBJECTS:
        value = waiting.popleft()
        if isinstance(value, _LEAVES) or id(value) in seen:
            continue
        seen.add(id(value))
        yield value
        if not isinstance(value, GENERATORS):
            waiting.extend(_items(value))
            waiting.extend(_attributes(value, classes))


def find_generators(root: Any, *, closed: Iterable[object] = ()) -> tuple[GeneratorLike, ...]:
    """The generators that ``root`` owns, in a stable order; the global ones are left out.

    Args:
        root: where to begin.
        closed: objects that are not looked into: they refer to what ``root`` does not own.
    """
    shared = {id(value) for value in _shared()}
    return tuple(
        value
        for value in _walk(root, closed)
        if isinstance(value, GENERATORS) and id(value) not in shared and not isinstance(value, random.SystemRandom)
    )


def _code_names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _code_names(constant)


def _functions(value: Any) -> Iterator[types.FunctionType]:
    """A function itself, the methods of an object's class, or else nothing."""
    members = [value] if isinstance(value, types.FunctionType) else []
    for cls in type(value).__mro__[:-1]:
        members += cls.__dict__.values()
    for member in members:
        function = getattr(member, "fget", None) if isinstance(member, property) else member
        function = function.__func__ if isinstance(function, (staticmethod, classmethod)) else function
        if isinstance(function, types.FunctionType):
            yield function


def _globals_used(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """What a function's code can mean by its names: globals, and members of the modules among them."""
    names = set(_code_names(function.__code__))
    values = {name: function.__globals__[name] for name in names if name in function.__globals__}
    yield from ((f"{function.__module__}.{name}", value) for name, value in values.items())
    for module in values.values():
        if isinstance(module, types.ModuleType):
            members = vars(module)
            yield from ((f"{module.__name__}.{name}", members[name]) for name in names if name in members)


def _is_installed(function: types.FunctionType) -> bool:
    return any(folder in function.__code__.co_filename for folder in ("site-packages", "dist-packages"))


def find_global_generators(root: Any) -> tuple[str, ...]:
    """Names of module-level generators that the code of ``root`` uses, or the functions of the user's that it calls.

    They may be shared with the training loop, so reseeding them would move its draws; they are reported instead.
    Functions of installed packages are not followed: theirs serve other ends, such as names of files.

    Returns:
        Names like ``"my_module.rng"``, sorted.
    """
    shared = {id(value) for value in _shared()}
    names = set()
    seen: set[types.CodeType] = set()
    waiting = [function for value in _walk(root) for function in _functions(value)]
    while waiting and len(seen) < _MAX_OBJECTS:
        function = waiting.pop()
        if function.__code__ in seen:
            continue
        seen.add(function.__code__)
        for name, value in _globals_used(function):
            if isinstance(value, GENERATORS) and id(value) not in shared:
                names.add(name)
            elif isinstance(value, types.FunctionType) and not _is_installed(value):
                waiting.append(value)
    return tuple(sorted(names))


def _seed_one(generator: GeneratorLike, seed: int) -> None:
    if isinstance(generator, torch.Generator):
        generator.manual_seed(seed >> 1)
    elif isinstance(generator, random.Random):
        generator.seed(seed)
    elif isinstance(generator, np.random.RandomState):
        _seed_legacy(generator, seed)
    elif type(generator.bit_generator) is np.random.PCG64:
        generator.bit_generator.state = _pcg64_state(seed)
    else:
        # a Generator has no seed(): a fresh bit generator of its own kind supplies the state
        generator.bit_generator.state = type(generator.bit_generator)(seed).state


def _seed_legacy(generator: np.random.RandomState, seed: int) -> None:
    try:
        generator.seed(seed & 0xFFFFFFFF)
    except TypeError:  # built over another kind than MT19937
        kind = getattr(np.random, generator.get_state(legacy=False)["bit_generator"])
        generator.set_state(kind(seed).state)  # without a pending Gaussian


def _pcg64_state(seed: int) -> Any:
    """A state of the default bit generator (any number, any odd increment), without NumPy's slow seeding."""
    words = {
        "state": (derive(seed, 1) << 64) | derive(seed, 2),
        "inc": (derive(seed, 3) << 64) | seed | 1,
    }
    return {"bit_generator": "PCG64", "state": words, "has_uint32": 0, "uinteger": 0}


def seed_generators(generators: Iterable[GeneratorLike], seed: int) -> None:
    """Seed each generator from ``seed`` and its place in the order."""
    for place, generator in enumerate(generators):
        _seed_one(generator, derive(seed, place))


def _state(generator: GeneratorLike) -> Any:
    if isinstance(generator, torch.Generator):
        return generator.get_state()
    if isinstance(generator, random.Random):
        return generator.getstate()
    if isinstance(generator, np.random.RandomState):
        return generator.get_state(legacy=False)
    return generator.bit_generator.state


def _set_state(generator: GeneratorLike, state: Any) -> None:
    if isinstance(generator, (torch.Generator, np.random.RandomState)):
        generator.set_state(state)
    elif isinstance(generator, random.Random):
        generator.setstate(state)
    else:
        generator.bit_generator.state = state


class OwnedStream:
    """A `Stream` for code that draws from generators of its own as well: inside, those continue it too.

    Args:
        seed: of the stream.
        generators: as `find_generators` gives them; outside they are untouched.
    """

    def __init__(self, seed: int, generators: tuple[GeneratorLike, ...]) -> None:
        self._seed = seed
        self._generators = generators
        self._global = Stream(seed)
        self._inside: list[Any] | None = None
        self._outside: list[Any] = []

    def __enter__(self) -> OwnedStream:
        self._global.__enter__()
        self._outside = [_state(generator) for generator in self._generators]
        if self._inside is None:
            seed_generators(self._generators, self._seed)
        else:
            self._put(self._inside)
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._inside = [_state(generator) for generator in self._generators]
        self._put(self._outside)
        self._global.__exit__(*exc_info)

    def _put(self, states: list[Any]) -> None:
        for generator, state in zip(self._generators, states, strict=True):
            _set_state(generator, state)


def capture_generators(generators: Iterable[GeneratorLike]) -> list[Any]:
    """The state of each generator: tensors, arrays and plain values."""
    return [_state(generator) for generator in generators]


def apply_generators(generators: Iterable[GeneratorLike], saved: Iterable[Any]) -> None:
    """Put each generator back to what `capture_generators` saw.

    Raises:
        ValueError: there are more or fewer of them now, or one is of another kind.
    """
    for generator, state in zip(generators, saved, strict=True):
        try:
            _set_state(generator, state)
        except (KeyError, TypeError, RuntimeError) as error:
            raise ValueError(f"a {type(generator).__name__} cannot take the state that was saved for it") from error
