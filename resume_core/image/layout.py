"""Where each tensor lies in its file: a safetensors image planned once per structure.

The format (https://huggingface.co/docs/safetensors, "Format"): 8 bytes little-endian header length, the header in JSON,
then the data without holes. Ours pads the header with spaces, so that the data starts on a page. Tensors that fill
whole cache lines come first, then the others by item size, largest first: each starts at a multiple of its own item
size, so is a valid view of the image, and a scalar between large tensors does not push those after it off the cache
lines, which would slow their copy by a quarter.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from resume_core.errors import UnsupportedStateError
from resume_core.image.dtypes import BY_DTYPE
from resume_core.image.views import Dims, ViewNames, c_strides, file_shape, stored_strides

PAGE_BYTES = 4096
"""Data of an image starts at a multiple of this, and so does each image in an arena."""

MAX_HEADER_BYTES = 100_000_000
"""Limit of the format's reference reader (``MAX_HEADER_SIZE``)."""

_CACHE_LINE_BYTES = 64

_Signature = list[tuple[str, torch.dtype, torch.Size, Dims, torch.device]]


@dataclass(frozen=True)
class Entry:
    """One tensor of an image.

    Attributes:
        name: its name in the file.
        offset: bytes from the start of the file.
        nbytes: its size in the file.
        dtype: element type, also where the header names a carrier.
        shape: logical shape.
        strides: strides, in elements, of the dense copy that is staged.
    """

    name: str
    offset: int
    nbytes: int
    dtype: torch.dtype
    shape: Dims
    strides: Dims

    def view(self, image: torch.Tensor) -> torch.Tensor:
        """This tensor inside ``image``, a uint8 tensor that starts where the file starts."""
        raw = image[self.offset : self.offset + self.nbytes]
        return raw.view(self.dtype).as_strided(self.shape, self.strides)


@dataclass(frozen=True, eq=False)
class Layout:
    """The plan of one safetensors file.

    Attributes:
        header: the first bytes of the file, a multiple of 4,096: length, JSON, padding.
        size_bytes: of the whole file.
        entries: name to place, in the order of the file.
        aliases: names that were dropped because they are the same view as another, to the name of that one.
        plain: True when the file ends up in C order.
    """

    header: bytes
    size_bytes: int
    entries: Mapping[str, Entry]
    aliases: Mapping[str, str]
    plain: bool
    _signature: _Signature = field(repr=False)
    _addresses: list[int] = field(repr=False)

    @classmethod
    def plan(
        cls, tensors: Mapping[str, torch.Tensor], *, metadata: Mapping[str, str] | None = None, plain: bool = False
    ) -> Layout:
        """Give every tensor its place.

        A name that is the same view of the same memory as an earlier one is dropped, and recorded in the file's
        metadata as ``dropped -> kept``, as ``safetensors.torch.save_model`` does.

        Args:
            tensors: name to strided tensor, in any order of dimensions.
            metadata: text for the header.
            plain: logical shapes and, after :meth:`Image.finish`, C order, for a file that is used alone. Without it
                tensors stay as they lie in memory and the header has the permuted shape.

        Raises:
            UnsupportedStateError: an element type that no image can hold, or too many tensors for the header.
        """
        kept, aliases = _without_aliases(tensors)
        entries = _placed(kept)
        header = _header(entries, {**aliases, **(metadata or {})}, plain=plain)
        end = max((entry.offset + entry.nbytes for entry in entries), default=0)
        placed = {e.name: _moved(e, len(header)) for e in entries}
        return cls(header, len(header) + end, placed, aliases, plain, _signature(tensors), _pattern(tensors))

    def matches(self, tensors: Mapping[str, torch.Tensor]) -> bool:
        """True when a plan of ``tensors`` would be this one: the same names, types, shapes, strides and aliases."""
        return _signature(tensors) == self._signature and _pattern(tensors) == self._addresses


def _signature(tensors: Mapping[str, torch.Tensor]) -> _Signature:
    return [(name, t.dtype, t.shape, t.stride(), t.device) for name, t in tensors.items()]


def _pattern(tensors: Mapping[str, torch.Tensor]) -> list[int]:
    """For each tensor the index of the first at the same address: equal patterns have equal aliases."""
    first: dict[int, int] = {}
    return [first.setdefault(tensor.data_ptr(), index) for index, tensor in enumerate(tensors.values())]


def _without_aliases(tensors: Mapping[str, torch.Tensor]) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    views = ViewNames()
    first = {name: views.first_name(name, tensor) for name, tensor in tensors.items()}
    kept = {name: tensors[name] for name in first if first[name] == name}
    return kept, {name: to for name, to in first.items() if to != name}


def _placed(tensors: Mapping[str, torch.Tensor]) -> list[Entry]:
    """Entries with offsets from the start of the data: whole cache lines, then by item size, else as given."""
    entries, offset = [], 0
    for name, tensor in sorted(tensors.items(), key=lambda item: _rank(item[1])):
        if tensor.dtype not in BY_DTYPE:
            raise UnsupportedStateError(
                f"{name!r} is a tensor of {tensor.dtype}, which has no place in a file", path=name
            )
        nbytes = tensor.nbytes
        entries.append(Entry(name, offset, nbytes, tensor.dtype, tuple(tensor.shape), stored_strides(tensor)))
        offset += nbytes
    return entries


def _rank(tensor: torch.Tensor) -> int:
    return -tensor.dtype.itemsize if tensor.nbytes % _CACHE_LINE_BYTES else -_CACHE_LINE_BYTES


def _moved(entry: Entry, by: int) -> Entry:
    return Entry(entry.name, entry.offset + by, entry.nbytes, entry.dtype, entry.shape, entry.strides)


def _header(entries: list[Entry], metadata: Mapping[str, str], *, plain: bool) -> bytes:
    fields: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    fields.update((entry.name, _described(entry, plain=plain)) for entry in entries)
    text = json.dumps(fields, separators=(",", ":")).encode("ascii")
    num_padding = -(8 + len(text)) % PAGE_BYTES
    if len(text) + num_padding > MAX_HEADER_BYTES:
        raise UnsupportedStateError(f"{len(entries)} tensors need a header above the format's {MAX_HEADER_BYTES} bytes")
    return struct.pack("<Q", len(text) + num_padding) + text + b" " * num_padding


def _described(entry: Entry, *, plain: bool) -> dict[str, Any]:
    dtype = BY_DTYPE[entry.dtype]
    shape = file_shape(dtype, entry.shape, entry.strides, plain=plain)
    return {
        "dtype": dtype.code,
        "shape": list(shape),
        "data_offsets": [entry.offset, entry.offset + entry.nbytes],
    }


def needs_reordering(entry: Entry) -> bool:
    """True when the bytes of ``entry`` as staged differ from C order. Strides of dimensions of size 1 say nothing."""
    dims = [(size, stride) for size, stride in zip(entry.shape, entry.strides, strict=True) if size != 1]
    shape, strides = tuple(size for size, _ in dims), tuple(stride for _, stride in dims)
    return entry.nbytes > 0 and strides != c_strides(shape)
