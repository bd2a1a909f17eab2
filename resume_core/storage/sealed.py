"""Small JSON files that find any alteration of themselves.

A sealed file is one JSON object. Its last member is the digest of every byte before that member::

    {
     "format": 1,
     "kind": "manifest",
     ...,
     "digest": "xxh3_128:5c2d...32 digits"
    }

The digest covers the text from the opening brace up to, not including, the comma before ``"digest"``. What follows
that point is a function of the digest alone, so a reader computes it and compares: no byte of the file, white space
included, can differ unnoticed. ``kind`` keeps a file of one kind from being taken for another. The seal is the part
of the format that later versions keep, so that a newer file is told from a broken one.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, NoReturn

from resume_core.errors import CorruptCheckpointError
from resume_core.storage.digest import ALGORITHM, digest
from resume_core.storage.repeated import Repeated

__all__ = ["FORMAT_VERSION", "Fields", "JsonMapping", "check_plain", "check_seal", "parse", "seal", "unseal"]

FORMAT_VERSION = 1
"""The format this release writes and reads."""

JsonMapping = Mapping[str, Any]

_MAX_DEPTH = 100  # far below the recursion limit of any JSON parser, far above what a header needs
_TAIL_BYTES = len(f',\n "digest": "{ALGORITHM}:{"0" * 32}"\n}}\n')


def check_plain(value: object, path: str, depth: int = 0) -> None:
    """Check that ``value`` is strict JSON, so that it comes back as it went in.

    Raises:
        TypeError: something other than str-keyed dict, list, str, int, float, bool and None; names its dotted path.
        ValueError: a float that is not finite, or more than 100 levels.
    """
    if depth > _MAX_DEPTH:
        raise ValueError(
            f"{path[:200]}... is nested deeper than {_MAX_DEPTH} levels; keep such values out of the header"
        )
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{path} is {value}, which JSON cannot hold; encode it as a string")
    if isinstance(value, Mapping):
        for key, item in value.items():
            if not isinstance(key, str):
                raise TypeError(f"{path} has the key {key!r}; JSON keys are strings")
            check_plain(item, f"{path}.{key}", depth + 1)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            check_plain(item, f"{path}[{index}]", depth + 1)
    elif not (value is None or isinstance(value, (str, int, float))):
        raise TypeError(
            f"{path} is a {type(value).__name__}; strict JSON holds dict, list, str, int, float, bool, None"
        )


def _tail(body: bytes) -> bytes:
    return f',\n "digest": "{ALGORITHM}:{digest(body)}"\n}}\n'.encode()


def seal(kind: str, fields: JsonMapping) -> bytes:
    """The bytes of a sealed file of ``kind`` with ``fields``.

    Raises:
        TypeError: a value that is not strict JSON.
        ValueError: a float that is not finite, or too deep a nesting.
    """
    check_plain(fields, kind)
    text = json.dumps({"format": FORMAT_VERSION, "kind": kind, **fields}, indent=1, allow_nan=False, default=dict)
    body = text.encode()[: -len("\n}")]
    return body + _tail(body)


def check_seal(data: bytes, path: str) -> None:
    """Check that no byte of a sealed file was altered; nothing in it is understood.

    Args:
        data: the whole file.
        path: where it lies, for messages.

    Raises:
        CorruptCheckpointError: one was, or it bears no seal.
    """
    body = data[:-_TAIL_BYTES]
    if data[-_TAIL_BYTES:] != _tail(body):
        raise CorruptCheckpointError(
            f"{path} is torn or was altered: its {len(data)} bytes do not match the digest at its end. "
            "Delete it or restore it from a backup; nothing in it is used.",
            path=path,
        )


def unseal(kind: str, data: bytes, path: str, *, without: Repeated | None = None) -> Fields:
    """The fields of a sealed file, after its seal was checked.

    Args:
        kind: the kind the file must be of.
        data: the whole file.
        path: where it lies, for messages.
        without: a member that is not wanted, and empty then.

    Raises:
        CorruptCheckpointError: any byte was altered, it is of another kind or format, or is not strict JSON.
    """
    check_seal(data, path)
    fields = Fields(parse(without.without(data) if without else data, path), path)
    version = fields.count("format")
    if version > FORMAT_VERSION:
        fields.fail(f"it has format {version}, this release reads format {FORMAT_VERSION}: upgrade exact-resume")
    if version < FORMAT_VERSION:
        fields.fail(
            f"it has format {version}, and this release reads format {FORMAT_VERSION}: go on with the exact-resume "
            "that wrote it, or start in another directory from the weights in its model.safetensors"
        )
    if version != FORMAT_VERSION or fields.text("kind") != kind:
        fields.fail(f"it is not a {kind} of format {FORMAT_VERSION}")
    return fields


def parse(data: bytes, path: str, depth: int = 0) -> object:
    """A value of strict JSON.

    Args:
        data: its text.
        path: where that lies, for messages.
        depth: levels of the file that are around it.

    Raises:
        CorruptCheckpointError: it is not strict JSON, or nested deeper than 100 levels.
    """
    try:
        value = json.loads(data, object_pairs_hook=_unique, parse_constant=_refuse_constant, parse_float=_finite_float)
        # text with so few brackets is not nested deeper
        if data.count(b"[") + data.count(b"{") > _MAX_DEPTH - depth:
            _check_depth(value, _MAX_DEPTH - depth)
    # RecursionError: nesting bombs; the seal says who wrote the bytes, not that they are sane.
    except (ValueError, TypeError, RecursionError) as error:
        raise CorruptCheckpointError(f"{path} is not strict JSON: {str(error)[:300]}", path=path) from error
    return value


def _check_depth(value: object, most: int) -> None:
    """All that `check_plain` has to ask of what a strict parser gave; a manifest may hold thousands of digests."""
    level: list[Any] = [value]
    for _ in range(most + 1):
        inner = [node.values() if type(node) is dict else node for node in level if type(node) in (dict, list)]
        level = [child for children in inner for child in children if type(child) in (dict, list)]
        if not level:
            return
    raise ValueError(f"it is nested deeper than {_MAX_DEPTH} levels")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ValueError("a key appears twice in one object")
    return value


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")


def _finite_float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:40]} is no finite number")
    return value


class Fields:
    """One JSON object of a file that nobody vouches for, read field by field.

    Every reader checks the type and raises ``CorruptCheckpointError`` naming the file and the field.
    """

    def __init__(self, value: object, path: str, where: str = "") -> None:
        self._path = path
        self._where = where
        self._values: dict[str, Any] = value if isinstance(value, dict) else self.fail("an object is expected here")

    @property
    def values(self) -> dict[str, Any]:
        """All of them, as they are."""
        return self._values

    def fail(self, problem: str) -> NoReturn:
        """Raise ``CorruptCheckpointError`` that names the file, the place in it and ``problem``."""
        place = f" at {self._where}" if self._where else ""
        raise CorruptCheckpointError(f"{self._path} cannot be used{place}: {problem}", path=self._path)

    def value(self, name: str) -> Any:
        """The field as it is; it must be there."""
        if name not in self._values:
            self.fail(f"the field {name!r} is missing")
        return self._values[name]

    def text(self, name: str) -> str:
        """A string."""
        value = self.value(name)
        return value if isinstance(value, str) else self._wrong(name, "a string")

    def optional_text(self, name: str) -> str | None:
        """A string or null."""
        return None if self.value(name) is None else self.text(name)

    def count(self, name: str) -> int:
        """A whole number from 0 to 2**63 - 1."""
        value = self.value(name)
        plain = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63
        return int(value) if plain else self._wrong(name, "a whole number from 0 to 2**63 - 1")

    def texts(self, name: str) -> tuple[str, ...]:
        """A list of strings."""
        values = self._list(name)
        return tuple(values) if {str}.issuperset(map(type, values)) else self._wrong(name, "a list of strings")

    def mapping(self, name: str) -> dict[str, Any]:
        """An object, as a plain dict."""
        value = self.value(name)
        return value if isinstance(value, dict) else self._wrong(name, "an object")

    def object(self, name: str) -> Fields:
        """An object, to be read field by field."""
        return Fields(self.value(name), self._path, self._inner(name))

    def objects(self, name: str) -> tuple[Fields, ...]:
        """A list of objects."""
        inner = self._inner(name)
        return tuple(Fields(v, self._path, f"{inner}[{i}]") for i, v in enumerate(self._list(name)))

    def _list(self, name: str) -> list[Any]:
        value = self.value(name)
        return value if isinstance(value, list) else self._wrong(name, "a list")

    def _inner(self, name: str) -> str:
        return f"{self._where}.{name}" if self._where else name

    def _wrong(self, name: str, expected: str) -> NoReturn:
        found = repr(self._values[name])
        self.fail(f"{name!r} must be {expected}, found {found[:80]}")
