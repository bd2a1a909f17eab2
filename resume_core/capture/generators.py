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

from resume_core.capture.kinds import is_a
from resume_core.capture.rng import Stream, derive

__all__ = [
    "GENERATORS",
    "GeneratorLike",
    "OwnedStream",
    "apply_generators",
    "capture_generators",
    "find_generators",
    "seed_generators",
    "shared_generators",
    "walk",
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


def shared_generators() -> tuple[object, ...]:
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
    if is_a(value, types.FunctionType):
        return _function_parts(value)
    if is_a(value, types.MethodType):
        return (value.__self__, value.__func__)
    if is_a(value, types.BuiltinMethodType):
        return (value.__self__,)
    if is_a(value, functools.partial):
        return (value.func, *value.args, *value.keywords.values())
    if is_a(value, dict):
        return dict.values(value) if dict.__len__(value) <= _MAX_ITEMS else ()
    if is_a(value, list):
        return list.__iter__(value) if list.__len__(value) <= _MAX_ITEMS else ()
    if is_a(value, tuple):
        return tuple.__iter__(value) if tuple.__len__(value) <= _MAX_ITEMS else ()
    return value if type(value) in (set, frozenset) and len(value) <= _MAX_ITEMS else ()


def _of_class(cls: type) -> tuple[list[types.MemberDescriptorType], list[GeneratorLike]]:
    """The slots of a class, and the generators that it holds for all its objects."""
    members = [vars(base) for base in cls.__mro__[:-1]]
    slotted = [value for names in members if "__slots__" in names for value in names.values()]
    slots = [value for value in slotted if is_a(value, types.MemberDescriptorType)]
    return slots, [value for names in members for value in names.values() if is_a(value, GENERATORS)]


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


def walk(root: Any, closed: Iterable[object] = ()) -> Iterator[Any]:
    """Every object reachable from ``root`` by ownership, breadth first, each once; but not through ``closed``."""
    seen = {id(value) for value in closed}
    classes: dict[type, Any] = {}
    waiting = collections.deque([root])
    while waiting and len(seen) < _MAX_OBJECTS:
        value = waiting.popleft()
        if is_a(value, _LEAVES) or id(value) in seen:
            continue
        seen.add(id(value))
        yield value
        if not is_a(value, GENERATORS):
            waiting.extend(_items(value))
            waiting.extend(_attributes(value, classes))


def find_generators(root: Any, *, closed: Iterable[object] = ()) -> tuple[GeneratorLike, ...]:
    """The generators that ``root`` owns, in a stable order; the global ones are left out.

    Args:
        root: where to begin.
        closed: objects that are not looked into: they refer to what ``root`` does not own.
    """
    shared = {id(value) for value in shared_generators()}
    return tuple(
        value
        for value in walk(root, closed)
        if is_a(value, GENERATORS) and id(value) not in shared and not is_a(value, random.SystemRandom)
    )


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
