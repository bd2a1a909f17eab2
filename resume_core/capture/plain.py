"""Any Python value as plain JSON that is the same in every process.

Facts about a run are written as JSON and compared after a restart, so a value must not carry an address, an order that
depends on hashing, or a number that JSON cannot hold. What is too large is replaced by a digest of itself.
"""

from __future__ import annotations

import enum
import functools
import json
import math
import re
import types
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from pathlib import PurePath
from typing import Any

import numpy as np
import torch
import xxhash

__all__ = ["array_digest", "callable_name", "callable_settings", "class_path", "is_setting", "plain", "words"]

_MAX_TEXT = 1000  # characters kept of a string or a repr
_MAX_NODES = 2048  # values in one nested container; also what ends a container that holds itself
_MAX_DEPTH = 32
_MAX_SMALL = 64  # elements of an array that are written out
_MAX_HASHED = 1 << 22  # elements of an array that are hashed; keeps it far below a second
_MAX_INT_BITS = 256  # Python refuses to print integers of more than 4300 digits
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


class _TooLargeError(Exception):
    pass


class _Budget:
    """Counts the nodes of one value, so that no value takes unbounded time."""

    def __init__(self) -> None:
        self._left = _MAX_NODES

    def spend(self, depth: int) -> None:
        self._left -= 1
        if self._left < 0 or depth > _MAX_DEPTH:
            raise _TooLargeError


def plain(value: object) -> Any:
    """``value`` as str, int, finite float, bool, None, list or str-keyed dict.

    Two values that are equal give equal results, in any process. Tuples become lists, sets are sorted, non-finite
    floats become their repr; arrays of more than 64 elements and containers of more than 2,048 become a digest; an
    object of an unknown type becomes its repr without addresses, cut to 1,000 characters and a digest. Never raises.
    """
    try:
        return _plain(value, _Budget(), 0)
    except (_TooLargeError, RecursionError):
        return _summary(value)
    except Exception:  # a user's object may raise anything from anywhere; its class is still worth recording
        return f"<{class_path(value)}>"


def _plain(value: object, budget: _Budget, depth: int) -> Any:
    budget.spend(depth)
    if isinstance(value, Mapping):
        return _plain_mapping(value, budget, depth)
    if isinstance(value, (list, tuple, deque)):
        return [_plain(item, budget, depth + 1) for item in value]
    if isinstance(value, AbstractSet):
        return sorted((_plain(item, budget, depth + 1) for item in value), key=json.dumps)
    return _plain_leaf(value)


def _plain_mapping(value: Mapping[Any, Any], budget: _Budget, depth: int) -> Any:
    pairs = [(key, _plain(item, budget, depth + 1)) for key, item in value.items()]
    if all(type(key) is str for key, _ in pairs):
        return dict(pairs)
    # JSON would turn the keys 1 and "1" into one; pairs keep them apart
    return sorted(([_plain_leaf(key), item] for key, item in pairs), key=json.dumps)


def _plain_leaf(value: object) -> Any:
    for types_, convert in _LEAVES:
        if isinstance(value, types_):
            return convert(value)
    return _callable_text(value) if callable(value) else _text(value)


def _int(value: int) -> Any:
    return int(value) if value.bit_length() <= _MAX_INT_BITS else _bounded(f"{value:#x}")


def _float(value: float) -> Any:
    return float(value) if math.isfinite(value) else repr(float(value))


def _enum(value: enum.Enum) -> str:
    return f"{type(value).__qualname__}.{value.name}"


def _numpy_scalar(value: Any) -> Any:
    item = value.item()
    return _text(value) if isinstance(item, np.generic) else _plain_leaf(item)  # a long double stays one


def _array(value: np.ndarray[Any, Any]) -> Any:
    if value.size <= _MAX_SMALL:
        return _plain(value.tolist(), _Budget(), 0)
    return f"{value.dtype}{list(value.shape)}, xxh3 {array_digest(value) or _digest(repr(value))}"


def _tensor(value: torch.Tensor) -> Any:
    if value.is_meta or value.layout is not torch.strided or value.is_quantized:
        return f"{value.dtype}{list(value.shape)}"
    return _array(_as_numpy(value))


def _callable_text(value: Any) -> str:
    if isinstance(value, functools.partial):
        # the address of the inner function is the only part of a partial's repr that is not its settings
        return _bounded(f"{callable_name(value)}({plain([value.args, value.keywords])})")
    return callable_name(value) if isinstance(value, (type, *_FUNCTIONS)) else _text(value)


_FUNCTIONS = (types.FunctionType, types.MethodType, types.BuiltinFunctionType, types.BuiltinMethodType)

_LEAVES: tuple[tuple[Any, Callable[[Any], Any]], ...] = (
    ((bool, types.NoneType), lambda value: value),
    (enum.Enum, _enum),  # before str and int: such enums are both
    (str, lambda value: _bounded(str.__str__(value))),
    (np.generic, _numpy_scalar),  # before float: np.float64 is one
    (int, _int),
    (float, _float),
    (torch.Tensor, _tensor),
    (np.ndarray, _array),
    ((PurePath, torch.dtype, torch.device), lambda value: _bounded(str(value))),
)


def _text(value: object) -> str:
    return _bounded(_ADDRESS.sub("", repr(value)))


def _bounded(text: str) -> str:
    if len(text) <= _MAX_TEXT:
        return text
    return f"{text[:_MAX_TEXT]}… ({len(text)} characters, xxh3 {_digest(text)})"


def _digest(text: str) -> str:
    return xxhash.xxh3_64_hexdigest(text.encode("utf-8", "surrogatepass"))


def _summary(value: Any) -> str:
    try:
        text = str(sorted(map(repr, value))) if isinstance(value, AbstractSet) else repr(value)
        return f"{type(value).__qualname__} of {len(value)} items, xxh3 {_digest(_ADDRESS.sub('', text))}"
    except Exception:
        return f"<{class_path(value)}>"


def class_path(value: object) -> str:
    """The full dotted name of a class, or of the class of an object."""
    cls = value if isinstance(value, type) else type(value)
    return _dotted(cls.__module__, cls.__qualname__)


def _dotted(module: str | None, qualname: str) -> str:
    # in a spawned process the script's module goes by another name
    return f"{'__main__' if module == '__mp_main__' else module}.{qualname}"


def callable_name(value: Any) -> str:
    """The dotted name of a function, of what a partial wraps, or of a callable object's class."""
    if isinstance(value, functools.partial):
        return callable_name(value.func)
    qualname = getattr(value, "__qualname__", None)
    return _dotted(getattr(value, "__module__", None), qualname) if qualname else class_path(value)


def callable_settings(value: Any) -> dict[str, Any]:
    """The numbers and strings that a callable carries along, by name.

    Those are the arguments of a partial, the defaults and the closure of a function, and the attributes of a callable
    object. Warm-up lengths and horizons of most schedules sit there.
    """
    if isinstance(value, functools.partial):
        args = {f"args.{i}": arg for i, arg in enumerate(value.args)}
        found = {**callable_settings(value.func), **args, **value.keywords}
    elif isinstance(value, types.FunctionType):
        found = {**_defaults(value), **_closure(value)}
    else:
        found = {} if isinstance(value, (type, *_FUNCTIONS)) else dict(getattr(value, "__dict__", {}))
    return {str(name): plain(item) for name, item in found.items() if is_setting(item)}


def _defaults(function: types.FunctionType) -> dict[str, Any]:
    defaults = function.__defaults__ or ()
    code = function.__code__
    names = code.co_varnames[: code.co_argcount][-len(defaults) :] if defaults else ()
    return {**dict(zip(names, defaults, strict=True)), **(function.__kwdefaults__ or {})}


def _closure(function: types.FunctionType) -> dict[str, Any]:
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    unassigned = types.CellType()
    return {name: cell.cell_contents for name, cell in cells if cell != unassigned}


def is_setting(value: object) -> bool:
    """Whether a value is what people configure: numbers, strings, None, and lists, tuples or dicts of them."""
    if isinstance(value, Mapping):
        return all(is_setting(key) and is_setting(item) for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return all(map(is_setting, value))
    if isinstance(value, torch.Tensor):
        return value.numel() <= _MAX_SMALL
    return value is None or isinstance(value, (bool, int, float, str, enum.Enum, np.generic))


def array_digest(values: Any) -> str | None:
    """A digest of a list, range, array or tensor of numbers, the same for equal numbers in any of these forms.

    Above 4,194,304 elements evenly spaced ones are hashed together with the length, so that the time stays bounded.

    Returns:
        A hexadecimal digest, None when ``values`` cannot be read as numbers.
    """
    try:
        length = len(values)
        array = _as_numpy(values[:: max(1, -(-length // _MAX_HASHED))])
        if array.dtype.kind not in "biuf":
            return None
        array = array.astype(np.float64 if array.dtype.kind == "f" else np.int64)
    except (TypeError, ValueError, OverflowError, KeyError, IndexError, RuntimeError):
        return None
    digest = xxhash.xxh3_64(np.ascontiguousarray(array).data)
    digest.update(str((length, *array.shape[1:])).encode())
    return digest.hexdigest()


def _as_numpy(values: Iterable[Any]) -> np.ndarray[Any, Any]:
    if isinstance(values, range):
        return np.arange(values.start, values.stop, values.step)
    if isinstance(values, torch.Tensor):
        host = values.detach().cpu()
        return np.asarray(host.double() if host.is_floating_point() else host)
    return np.asarray(values)


def words(name: str) -> list[str]:
    """The words of an identifier, in lower case: of ``max_epochs`` and ``maxEpochs`` alike."""
    return [word.lower() for word in _WORD.findall(name)]
