"""How far the tensors of two files lie apart, read side by side with one chunk of each in memory, and one tensor."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from resume_core.cli.source import Source
from resume_core.image import header_bytes, parse_header
from resume_core.image.read import Stored
from resume_core.storage import FileReader

__all__ = ["Change", "changes", "names_in"]

_LENGTH_BYTES = 8  # of the field that a safetensors file begins with
_BLOCK = 1 << 20  # elements that are compared at once, as float64


@dataclass(frozen=True)
class Change:
    """A tensor whose elements are not the same on both sides.

    Attributes:
        name: in its file.
        kind: its type and shape there.
        num_elements: that it has.
        num_changed: of them.
        largest: absolute difference of two elements; None where one is not finite.
        relative: Euclidean length of the difference, over that of the first side; None likewise, or where that is 0.
    """

    name: str
    kind: str
    num_elements: int
    num_changed: int
    largest: float | None
    relative: float | None


class _File:
    """A safetensors file of a checkpoint, its tensors by their places. Each chunk is checked, and the last one kept."""

    def __init__(self, source: Source, name: str) -> None:
        self.record = source.manifest.file(name)
        self._reader = FileReader(source.stores, source.ref, self.record)
        beginning = self._reader.read_beginning(_LENGTH_BYTES)
        if len(beginning) < header_bytes(beginning):
            beginning = self._reader.read_beginning(header_bytes(beginning))
        path = f"{source.ref.path}/{name}"
        self.stored = parse_header(beginning, path=path, size_bytes=self._reader.size_bytes).stored
        self._number, self._chunk = -1, bytearray()

    def read(self, stored: Stored) -> torch.Tensor:
        """The elements, in the order of the file."""
        memory, filled = bytearray(stored.nbytes), 0
        while filled < stored.nbytes:
            number, begin = divmod(stored.offset + filled, self.record.chunk_bytes)
            self._load(number)
            piece = self._chunk[begin : begin + stored.nbytes - filled]
            memory[filled : filled + len(piece)] = piece
            filled += len(piece)
        return torch.frombuffer(memory, dtype=stored.dtype)

    def _load(self, number: int) -> None:
        if number != self._number:
            left = self.record.size_bytes - number * self.record.chunk_bytes
            self._chunk = bytearray(min(self.record.chunk_bytes, left))
            self._reader.read_chunk(number, [memoryview(self._chunk)])
            self._number = number

    def digests(self, stored: Stored) -> tuple[str, ...]:
        """Those of the chunks that hold a tensor."""
        first, last = stored.offset, stored.offset + max(stored.nbytes - 1, 0)
        return self.record.digests[first // self.record.chunk_bytes : last // self.record.chunk_bytes + 1]


def changes(
    a: Source,
    b: Source,
    name: str,
    progress: Callable[[int, int], None] = lambda done, total: None,
    *,
    places: Sequence[Mapping[str, Hashable]] = ({}, {}),
) -> Iterator[Change]:
    """The tensors of one file that are not the same, of those that both sides have alike.

    Args:
        a: a checkpoint.
        b: another one.
        name: of a file that both have.
        progress: told how many bytes were compared, and of how many.
        places: of each side, by the name of a tensor what it is matched by; its name where that is not told.

    Raises:
        CorruptCheckpointError: a file is damaged.
        OSError: a store cannot be read.
    """
    if a.manifest.file(name) == b.manifest.file(name):
        return
    left, right = _File(a, name), _File(b, name)
    others = {places[1].get(key, key): stored for key, stored in right.stored.items()}
    mine = {key: places[0].get(key, key) for key in left.stored}
    pairs = [(key, one, others[mine[key]]) for key, one in left.stored.items() if mine[key] in others]
    alike = [(key, one, two) for key, one, two in pairs if (one.dtype, one.shape) == (two.dtype, two.shape)]
    done, total = 0, sum(one.nbytes for _, one, _ in alike)
    for key, one, two in sorted(alike, key=lambda pair: pair[1].offset):
        if one.nbytes and not _is_same(left, one, right, two):
            change = _change(key, one, left.read(one), right.read(two))
            if change.num_changed:
                yield change
        done += one.nbytes
        progress(done, total)


def names_in(source: Source, name: str) -> list[str]:
    """The tensors of one file of a checkpoint.

    Raises:
        CorruptCheckpointError: it is damaged.
        OSError: a store cannot be read.
    """
    return list(_File(source, name).stored)


def _is_same(left: _File, one: Stored, right: _File, two: Stored) -> bool:
    """Whether that can be told without reading: the same place in chunks of the same bytes."""
    same_place = (one.offset, left.record.chunk_bytes) == (two.offset, right.record.chunk_bytes)
    return same_place and left.digests(one) == right.digests(two)


def _change(name: str, stored: Stored, one: torch.Tensor, two: torch.Tensor) -> Change:
    kind = f"{str(stored.dtype).removeprefix('torch.')}{list(stored.shape)}"
    number, largest, apart, length = 0, 0.0, 0.0, 0.0
    for one_raw, two_raw in zip(torch.split(one, _BLOCK), torch.split(two, _BLOCK), strict=True):
        a, b = _parts(one_raw), _parts(two_raw)
        differ = _bits_differ(a, b)
        a, b = _wide(a), _wide(b)
        differ &= ~(a.isnan() & b.isnan())
        if differ.any():
            number += int(differ.view(len(one_raw), -1).any(1).sum())
            gap = torch.where(differ, (b - a).abs(), 0.0)
            largest = max(largest, _worst(gap))
            apart += float(gap.square().sum())
        length += float(a.square().sum())
    relative = math.sqrt(apart / length) if length and math.isfinite(apart) and math.isfinite(length) else None
    return Change(name, kind, one.numel(), number, largest if math.isfinite(largest) else None, relative)


def _parts(block: torch.Tensor) -> torch.Tensor:
    """Real and imaginary parts side by side."""
    return torch.view_as_real(block).flatten() if block.is_complex() else block


def _bits_differ(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """As they are stored: in float64 two large integers may be the same, and signed zeros always are."""
    return (a.view(torch.uint8) != b.view(torch.uint8)).view(len(a), -1).any(1)


def _wide(real: torch.Tensor) -> torch.Tensor:
    return real.to(torch.float32 if real.element_size() == 1 else real.dtype).to(torch.float64)


def _worst(gap: torch.Tensor) -> float:
    return math.inf if bool(gap.isnan().any()) else float(gap.max())
