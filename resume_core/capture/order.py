"""Which sample comes at which position of an epoch: pure functions of a seed.

A *position* counts the samples of an epoch that were consumed. For the samplers that torch ships, the whole order of
an epoch is computed from the seed, so any position can be reached without touching what lies before it.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
import xxhash
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from resume_core.capture.generators import OwnedStream, find_generators

__all__ = ["is_plain_batching", "order", "plain_ids", "sampler_chain", "sampler_salt", "sequence"]

_SPLIT = 4096  # indices made into integers at a time
_DRAWING = (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)
_END: Any = object()
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")  # other in each process
_MAX_IDS = 256  # of one batch that are written out


def is_plain_batching(batch_sampler: object) -> bool:
    """Whether batches are consecutive runs of the sampler's indices, as torch's own `BatchSampler` makes them."""
    return type(batch_sampler) is BatchSampler


def sampler_chain(sampler: Any) -> tuple[Any, ...]:
    """The sampler and those it wraps (``batch_sampler``, ``sampler`` attributes), outermost first."""
    chain: list[Any] = []
    while sampler is not None and all(sampler is not known for known in chain):
        chain.append(sampler)
        attributes = getattr(sampler, "__dict__", {})
        inner = attributes.get("batch_sampler")
        sampler = attributes.get("sampler") if inner is None else inner
        if not hasattr(sampler, "__iter__"):
            break
    return tuple(chain)


def sampler_salt(sampler: Any) -> int:
    """What a generator of the user's own adds to the seed of the order: its initial seed, 0 without one.

    So a user's ``generator=torch.Generator().manual_seed(42)`` still decides the order, and the generator itself is
    never moved.
    """
    generator = getattr(sampler, "generator", None)
    return int(generator.initial_seed()) if isinstance(generator, torch.Generator) else 0


def sequence(sampler: Any, seed: int) -> Sequence[int] | None:
    """All dataset indices of one epoch in order, or None when only the sampler itself can tell.

    Args:
        sampler: of torch's own classes exactly; a subclass may do anything and is left to itself.
        seed: 64-bit seed of this epoch's order.

    Returns:
        Indices, one per position. Equal calls give equal results; no generator outside is moved.
    """
    if type(sampler) is SequentialSampler:
        return range(len(sampler.data_source))
    if type(sampler) is DistributedSampler:
        return list(sampler)  # by its own seed and epoch alone
    if type(sampler) not in _DRAWING:
        return None
    generator = torch.Generator().manual_seed(seed >> 1)
    if type(sampler) is RandomSampler and not sampler.replacement:
        return _Shuffled(_permutations(len(sampler.data_source), sampler.num_samples, generator))
    twin = copy.copy(sampler)
    twin.generator = generator
    return list(twin)


def _permutations(num_indices: int, num_samples: int, generator: torch.Generator) -> torch.Tensor:
    """What `RandomSampler` draws: whole permutations, the last one cut short."""
    num_rounds = -(-num_samples // num_indices) if num_indices else 0
    rounds = [torch.randperm(num_indices, generator=generator) for _ in range(num_rounds)]
    return torch.cat(rounds)[:num_samples] if rounds else torch.empty(0, dtype=torch.int64)


class _Shuffled(Sequence[int]):
    """Indices in a tensor, turned into integers only where they are used: an epoch may have a billion."""

    def __init__(self, indices: torch.Tensor) -> None:
        self._indices = indices

    def __len__(self) -> int:
        return self._indices.numel()

    def __getitem__(self, place: Any) -> Any:
        found = self._indices[place]
        return _Shuffled(found) if isinstance(place, slice) else int(found)

    def __iter__(self) -> Iterator[int]:
        for first in range(0, len(self), _SPLIT):
            yield from self._indices[first : first + _SPLIT].tolist()


def order(sampler: Any, seed: int, start: int, *, single: bool) -> Iterator[Any]:
    """What a sampler yields in one epoch behind position ``start``, nothing before it being read.

    A sampler that only itself can tell the order is iterated in a random stream of its own, which covers the
    generators that it owns too, and what lies before ``start`` is taken as indices.

    Args:
        sampler: a sampler of single indices, or a batch sampler.
        seed: 64-bit seed of this epoch's order.
        start: samples to pass over.
        single: whether the loader takes what ``sampler`` yields one by one, as it is: ``start`` counts that then.
    """
    if is_plain_batching(sampler) and not single:
        indices, stream = _open(sampler.sampler, seed, start, _skip)
        return _batches(indices, stream, sampler.batch_size, drop_last=sampler.drop_last)
    units, stream = _open(sampler, seed, start, _skip if single else _skip_batches)
    return _one_by_one(units, stream)


_Opened = tuple[Iterator[Any], contextlib.AbstractContextManager[Any]]


def _open(sampler: Any, seed: int, start: int, skip: Callable[[Iterator[Any], int], None]) -> _Opened:
    """What ``sampler`` yields behind ``start``, and the block in which to ask for it."""
    known = sequence(sampler, seed)
    if known is not None:
        return iter(known[start:]), contextlib.nullcontext()
    stream = OwnedStream(seed, find_generators(sampler_chain(sampler)))
    with stream:
        units = iter(sampler)
        skip(units, start)
    return units, stream


def _skip(units: Iterator[Any], num_units: int) -> None:
    next(itertools.islice(units, num_units, num_units), None)


def _skip_batches(batches: Iterator[Any], num_samples: int) -> None:
    while num_samples > 0:
        batch = next(batches, _END)
        num_samples = 0 if batch is _END else num_samples - len(batch)


def _batches(
    indices: Iterator[Any], stream: contextlib.AbstractContextManager[Any], size: int, *, drop_last: bool
) -> Iterator[list[Any]]:
    """Batches as torch's `BatchSampler` makes them."""
    while True:
        with stream:
            batch = list(itertools.islice(indices, size))
        if not batch or (drop_last and len(batch) < size):
            return
        yield batch


def _one_by_one(units: Iterator[Any], stream: contextlib.AbstractContextManager[Any]) -> Iterator[Any]:
    while True:
        with stream:
            unit = next(units, _END)
        if unit is _END:
            return
        yield unit


def plain_ids(ids: Iterable[Any]) -> list[Any]:
    """What a sampler gave for one batch, as strict JSON; of a large batch the beginning, and a digest of all."""
    found = [value if type(value) in (int, str) else _plain_id(value) for value in ids]
    if len(found) <= _MAX_IDS:
        return found
    return [*found[:8], f"… {len(found)} in all, {xxhash.xxh3_64_hexdigest(repr(found).encode())}"]


def _plain_id(value: Any) -> Any:
    try:
        return operator.index(value)
    except TypeError:
        return _ADDRESS.sub("", repr(value))
