"""The closed table of values that are neither plain JSON nor containers nor tensors, and the user's own leaves.

Each kind is a pair of pure functions: ``encode(value)`` gives JSON fields, ``decode(**fields)`` the value again.
``decode`` may raise anything on fields that :func:`encode` did not write; the reader turns that into a
:class:`~resume_core.errors.CorruptCheckpointError`.
"""

from __future__ import annotations

import base64
import datetime as dt
import math
import pathlib
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch

T = TypeVar("T")
Fields = dict[str, Any]


@dataclass(frozen=True)
class Leaf:
    """One kind of the table: its name in ``{"$": kind}``, value to fields and back."""

    kind: str
    encode: Callable[[Any], Fields]
    decode: Callable[..., Any]


@dataclass(frozen=True)
class UserLeaf:
    """A leaf of the user's own, made by :func:`register_leaf`."""

    name: str
    cls: type
    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]


@dataclass(frozen=True)
class Recorded:
    """Stands for a value that was recorded for people only (``flatten(..., lenient=True)``).

    Attributes:
        type: the qualified name of its type.
        value: its ``repr``, cut at 1,000 characters.
    """

    type: str
    value: str


def qualified_name(cls: type) -> str:
    """``module.qualname`` of a class, for messages and as the name of a leaf."""
    return f"{cls.__module__}.{cls.__qualname__}"


def encode_float(value: float) -> Any:
    """A float as JSON: itself when finite, else ``{"$": "float"}``. The payload and sign of a NaN are lost."""
    return value if math.isfinite(value) else {"$": "float", "value": repr(value)}


def _decode_float(value: str) -> float:
    if value not in ("nan", "inf", "-inf"):
        raise ValueError(f"{value!r} is no non-finite float")
    return float(value)


def _number(value: Any) -> float:
    """The float inside a complex: plain or a node."""
    return _decode_float(value["value"]) if isinstance(value, dict) else float(value)


def _to_base64(raw: bytes) -> str:
    return base64.b64encode(raw).decode("ascii")


def _from_base64(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


def _text(value: Any) -> str:
    if type(value) is not str:
        raise TypeError(f"{value!r} is not a str")
    return value


def _ints(values: Any) -> list[int]:
    if type(values) is not list or any(type(value) is not int for value in values):
        raise TypeError(f"{values!r} is not a list of int")
    return values


def numpy_dtype(text: str) -> np.dtype[Any]:
    """The numpy type of a code such as ``"<f4"``; never objects, never structures."""
    dtype = np.dtype(_text(text))
    if dtype.kind not in "biufcmMSU" or dtype.str != text:
        raise ValueError(f"{text!r} is no plain numpy type")
    return dtype


def encode_array(value: Any) -> Fields:
    """A numpy array, or scalar, as bytes in C order."""
    if value.dtype.kind not in "biufcmMSU":
        raise TypeError(f"a numpy value of dtype {value.dtype}")
    return {"dtype": value.dtype.str, "shape": list(value.shape), "base64": _to_base64(value.tobytes())}


def _decode_array(dtype: str, shape: list[int], base64: str) -> np.ndarray[Any, Any]:
    kind, raw = numpy_dtype(dtype), _from_base64(base64)
    if min(_ints(shape), default=0) < 0 or math.prod(shape) * kind.itemsize != len(raw):
        raise ValueError("shape and bytes differ")
    return np.ndarray(shape, dtype=kind, buffer=bytearray(raw or b"\0"))


def _decode_numpy_scalar(dtype: str, base64: str) -> Any:
    return _decode_array(dtype, [], base64)[()]


def _encode_numpy_scalar(value: Any) -> Fields:
    fields = encode_array(value)
    del fields["shape"]
    return fields


def _encode_timezone(value: dt.tzinfo | None) -> Any:
    """None, or the offset in ``[days, seconds, microseconds]`` and the name of a ``datetime.timezone``."""
    if value is None:
        return None
    if type(value) is not dt.timezone:
        raise TypeError(f"a time with the zone {value!r} (only a datetime.timezone is kept)")
    offset, *name = value.__getinitargs__()  # type: ignore[attr-defined]  # absent from typeshed
    return [_delta(offset), *name]


def _decode_timezone(value: Any) -> dt.timezone | None:
    if value is None:
        return None
    offset, *name = value
    return dt.timezone(dt.timedelta(*_ints(offset)), *name)


def _delta(value: dt.timedelta) -> list[int]:
    return [value.days, value.seconds, value.microseconds]


def _encode_datetime(value: dt.datetime) -> Fields:
    date = [value.year, value.month, value.day]
    return {"date": date, **_encode_time(value)}


def _decode_datetime(date: list[int], time: list[int], fold: int, zone: Any) -> dt.datetime:
    return dt.datetime(*_ints([*date, *time]), fold=fold, tzinfo=_decode_timezone(zone))  # type: ignore[arg-type,misc]


def _encode_time(value: dt.datetime | dt.time) -> Fields:
    time = [value.hour, value.minute, value.second, value.microsecond]
    return {"time": time, "fold": value.fold, "zone": _encode_timezone(value.tzinfo)}


def _decode_time(time: list[int], fold: int, zone: Any) -> dt.time:
    return dt.time(*_ints(time), fold=fold, tzinfo=_decode_timezone(zone))  # type: ignore[arg-type,misc]


def _whole_text(value: np.str_) -> str:
    """All characters: ``str()`` leaves out zeros at the end."""
    return str.__getitem__(value, slice(None))


def _whole_bytes(value: np.bytes_) -> str:
    return _to_base64(bytes.__getitem__(value, slice(None)))


def _decode_dtype(value: str) -> torch.dtype:
    found = getattr(torch, _text(value))
    if type(found) is not torch.dtype:
        raise TypeError(f"torch.{value} is no dtype")
    return found


def _plain(kind: str, back: Callable[[Any], Any], to: Callable[[Any], Any]) -> Leaf:
    """A kind with one field, ``value``."""
    return Leaf(kind, lambda value: {"value": to(value)}, lambda value: back(value))


_PATH = _plain("Path", lambda value: pathlib.Path(_text(value)), str)

LEAVES: dict[type, Leaf] = {
    bytes: Leaf("bytes", lambda value: {"base64": _to_base64(value)}, lambda base64: _from_base64(base64)),
    complex: Leaf(
        "complex",
        lambda value: {"real": encode_float(value.real), "imag": encode_float(value.imag)},
        lambda real, imag: complex(_number(real), _number(imag)),
    ),
    torch.Size: _plain("torch.Size", lambda value: torch.Size(_ints(value)), list),
    torch.dtype: _plain("torch.dtype", _decode_dtype, lambda value: str(value).removeprefix("torch.")),
    torch.device: _plain("torch.device", lambda value: torch.device(_text(value)), str),
    pathlib.PosixPath: _PATH,
    pathlib.WindowsPath: _PATH,
    pathlib.PurePosixPath: _plain("PurePosixPath", lambda value: pathlib.PurePosixPath(_text(value)), str),
    pathlib.PureWindowsPath: _plain("PureWindowsPath", lambda value: pathlib.PureWindowsPath(_text(value)), str),
    dt.datetime: Leaf("datetime", _encode_datetime, _decode_datetime),
    dt.date: _plain("date", lambda value: dt.date(*_ints(value)), lambda v: [v.year, v.month, v.day]),
    dt.time: Leaf("time", _encode_time, _decode_time),
    dt.timedelta: _plain("timedelta", lambda value: dt.timedelta(*_ints(value)), _delta),
    np.str_: _plain("numpy.str_", lambda value: np.str_(_text(value)), _whole_text),
    np.bytes_: _plain("numpy.bytes_", lambda value: np.bytes_(_from_base64(value)), _whole_bytes),
}
"""The exact type of a value to its kind."""

NUMPY_SCALAR = Leaf("numpy.generic", _encode_numpy_scalar, _decode_numpy_scalar)
NUMPY_BYTES = Leaf("numpy.bytes", encode_array, _decode_array)

DECODERS: dict[str, Callable[..., Any]] = {
    "float": _decode_float,
    "int": lambda hex: int(_text(hex), 16),
    "str": lambda base64: _from_base64(base64).decode("utf-8", "surrogatepass"),
    "repr": lambda type, value: Recorded(_text(type), _text(value)),
    **{leaf.kind: leaf.decode for leaf in (*LEAVES.values(), NUMPY_SCALAR, NUMPY_BYTES)},
}
"""Kinds without children to the function that takes their fields."""

_PLAIN = (type(None), str, int, float, bool, list, tuple, set, frozenset, dict, OrderedDict, Counter, defaultdict)
_BUILT_IN = {*LEAVES, *_PLAIN, torch.Tensor, torch.nn.Parameter, np.ndarray}

USER_LEAVES: dict[type, UserLeaf] = {}
"""The exact type to the leaf that the user registered for it."""


def register_leaf(
    cls: type[T], encode: Callable[[T], Any], decode: Callable[[Any], T], *, name: str | None = None
) -> None:
    """Make values of exactly ``cls`` part of what a checkpoint can hold.

    A file never names code to run, so the script that resumes must register the same name before the restore.

    Args:
        cls: the type; subclasses of it are not included.
        encode: value to a tree of plain values, containers and tensors.
        decode: that tree to the value.
        name: what the file calls it, by default ``module.qualname``. Keep it when the class is moved or renamed.

    Raises:
        TypeError: ``cls`` is no class, or one that is supported without.
        ValueError: another class has the name.
    """
    if not isinstance(cls, type) or cls in _BUILT_IN:
        raise TypeError(f"register_leaf needs a class that is not supported by itself, got {cls!r}")
    name = name or qualified_name(cls)
    for other in list(USER_LEAVES.values()):
        if other.name == name and qualified_name(other.cls) != qualified_name(cls):
            raise ValueError(f"the name {name!r} is taken by {qualified_name(other.cls)}: pass another name=")
        if other.name == name:
            del USER_LEAVES[other.cls]  # the class was defined again, as in a notebook
    USER_LEAVES[cls] = UserLeaf(name, cls, encode, decode)


def user_leaf(name: str) -> UserLeaf | None:
    """The leaf registered under ``name``."""
    return next((leaf for leaf in USER_LEAVES.values() if leaf.name == name), None)
