"""Which sample comes at which position of an epoch: pure functions of a seed.

A *position* counts the samples of an epoch that were consumed. For the samplers that torch ships, the whole order of
an epoch is computed from the seed, so any position can be reached without touching what lies before it.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.data import (
    BatchSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

__all__ = ["is_plain_batching", "sampler_chain", "sampler_salt", "sequence"]

_DRAWING = (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)


def is_plain_batching(batch_sampler: object) -> bool:
    """Whether batches are consecutive runs of the sampler's indices, as torch's own `BatchSampler` makes them."""
    return type(batch_sampler) is BatchSampler


def sampler_chain(sampler: Any) -> tuple[Any, ...]:
    """The sampler and those it wraps (``batch_sampler``, ``sampler`` attributes), outermost first."""
    chain: list[Any] = []
    while sampler is not None and all(sampler is not known for known in chain):
        chain.append(sampler)
        attributes = getattr(sampler, "__dict__", {})
        sampler = attributes.get("batch_sampler") or attributes.get("sampler")
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
    if type(sampler) not in _DRAWING:
        return None
    twin = copy.copy(sampler)
    twin.generator = torch.Generator().manual_seed(seed >> 1)
    return list(twin)
