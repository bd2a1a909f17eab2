"""What a safetensors file holds and where, after checking everything that a header can get wrong."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from resume_core.collector import collector_paused
from resume_core.errors import CorruptCheckpointError
from resume_core.image.dtypes import BY_CODE
from resume_core.image.layout import MAX_HEADER_BYTES
from resume_core.text import loads

Buffer = bytes | bytearray | memoryview
"""A file in memory, or its beginning."""

_MAX_DIMS = 64
_MAX_ELEMENTS = 2**62


class Stored(NamedTuple):
    """One tensor as a file's header describes it.

    Attributes:
        dtype: type in the file; a carrier for types that the format lacks.
        shape: shape in the file; for a file that is not plain, in the order of memory.
        offset: bytes from the start of the file.
        nbytes: its size.
    """

    dtype: torch.dtype
    shape: tuple[int, ...]
    offset: int
    nbytes: int


@dataclass(frozen=True)
class Header:
    """What a file says it holds.

    Attributes:
        stored: name to tensor, in the order of the header.
        metadata: the text beside them.
        size_bytes: of the whole file.
    """

    stored: Mapping[str, Stored]
    metadata: Mapping[str, str]
    size_bytes: int


def header_bytes(beginning: Buffer) -> int:
    """Bytes from the start of a file to its data, as its first eight say; no more than a header may have.

    Args:
        beginning: eight bytes or more of the file; of one that has fewer, all.
    """
    return 8 + min(int.from_bytes(memoryview(beginning)[:8], "little"), MAX_HEADER_BYTES)


def parse_header(buffer: Buffer, *, path: str = "", size_bytes: int | None = None) -> Header:
    """What a file holds and where, without touching the data.

    Args:
        buffer: the file, or its beginning up to the end of the header at least.
        path: the file, for messages.
        size_bytes: of the whole file when ``buffer`` is only its beginning.

    Raises:
        CorruptCheckpointError: not a file of this format, whole and without holes.
    """
    view = memoryview(buffer).cast("B")
    size_bytes = len(view) if size_bytes is None else size_bytes
    try:
        with collector_paused():
            return _header(view, size_bytes, path)
    except (ValueError, TypeError, KeyError, OverflowError) as error:
        raise CorruptCheckpointError(
            f"{path or 'the file'} is not a whole safetensors file: {error}. Restore an older checkpoint.", path=path
        ) from error


def _header(view: memoryview, size_bytes: int, path: str) -> Header:
    start = 8 + int.from_bytes(view[:8], "little")
    if len(view) < 8 or start > min(size_bytes, len(view)) or start - 8 > MAX_HEADER_BYTES:
        raise ValueError(f"it has {size_bytes} bytes, too few for a header of {start - 8}")
    fields = loads(bytes(view[8:start]), path=path)
    if type(fields) is not dict:
        raise TypeError("the header is not an object")
    metadata = fields.pop("__metadata__", {})
    if type(metadata) is not dict or any(type(text) is not str for text in metadata.values()):
        raise TypeError("__metadata__ is not an object of text")
    stored = {name: _stored(name, entry, start) for name, entry in fields.items()}
    _check_cover(stored, start, size_bytes)
    return Header(stored, metadata, size_bytes)


def _stored(name: str, entry: Any, start: int) -> Stored:
    if type(entry) is not dict or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise ValueError(f"the entry of {name!r:.200} has not exactly dtype, shape and data_offsets")
    shape, (begin, end) = _sizes(name, entry["shape"]), _sizes(name, entry["data_offsets"], num=2)
    if type(entry["dtype"]) is not str or entry["dtype"] not in BY_CODE:
        raise ValueError(f"{name!r:.200} has the type {entry['dtype']!r:.80}, which this version of torch lacks")
    dtype = BY_CODE[entry["dtype"]]
    if end - begin != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"{name!r:.200} has {end - begin} bytes, its shape {list(shape)} needs other")
    return Stored(dtype, shape, start + begin, end - begin)


def _sizes(name: str, values: Any, num: int | None = None) -> tuple[int, ...]:
    """A list of ``num`` sizes whose product torch can count, zeros left out."""
    if type(values) is not list or len(values) > _MAX_DIMS or len(values) != (len(values) if num is None else num):
        raise TypeError(f"{name!r:.200} has the sizes {values!r:.80}")
    for value in values:
        if type(value) is not int or value < 0:
            raise ValueError(f"{name!r:.200} has the sizes {values!r:.80}")
    if math.prod(filter(None, values)) > _MAX_ELEMENTS:
        raise OverflowError(f"{name!r:.200} has the sizes {values!r:.80}")
    return tuple(values)


def _check_cover(stored: Mapping[str, Stored], start: int, size_bytes: int) -> None:
    """Each byte of the data belongs to exactly one tensor."""
    end = start
    for name, entry in sorted(stored.items(), key=lambda item: (item[1].offset, item[1].nbytes)):
        if entry.offset != end:
            raise ValueError(f"{name!r:.200} starts at byte {entry.offset}, the tensor before it ends at {end}")
        end += entry.nbytes
    if end != size_bytes:
        raise ValueError(f"it has {size_bytes} bytes, its header describes {end}")
