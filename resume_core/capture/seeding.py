"""Indices that carry their seeds to where the sample is fetched.

Everything random about a sample is a function of (seed of the epoch, position of the sample). The index objects that
a sampler hands to a fetcher do the seeding, so no dataset, collate function or worker needs a wrapper:

* a batch of indices is a list that reseeds before each index it yields: torch's fetcher iterates it and fetches each
  sample right after (`torch.utils.data._utils.fetch`);
* when it crosses to a worker it reseeds once as it is unpickled, which torch does on the worker's main thread right
  before the fetch; what uses the whole list at once (``__getitems__`` with a transform of the batch) draws from that.

The same draws follow with no worker, with fork, spawn and forkserver.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch.utils.data import get_worker_info

from resume_core.capture.generators import GeneratorLike, find_generators, seed_generators
from resume_core.capture.rng import derive, seed_rng

__all__ = ["SeededBatch", "SeededCollate", "SeededIndex", "SeededPlainBatch", "deliver"]

_COLLATE = -1  # words that no position takes
_DELIVERY = -2

_found: dict[int, tuple[Any, tuple[GeneratorLike, ...]]] = {}
_collate_seed = 0


def _generators_of(dataset: Any) -> tuple[GeneratorLike, ...]:
    """The generators of ``dataset``, searched once a process; the dataset is held so that its id stays its own."""
    cached = _found.get(id(dataset))
    if cached is None or cached[0] is not dataset:
        cached = _found[id(dataset)] = (dataset, find_generators(dataset))
    return cached[1]


def forget_generators(dataset: Any) -> None:
    """Search ``dataset`` again when it is used next (its transforms may have been replaced)."""
    _found.pop(id(dataset), None)


def _seed(seed: int, generators: tuple[GeneratorLike, ...]) -> None:
    seed_rng(seed)
    if generators:
        seed_generators(generators, seed)


def deliver(seed: int, position: int, dataset: Any) -> None:
    """Seed for a fetch that starts now and for what draws before any single sample is fetched."""
    global _collate_seed
    _collate_seed = derive(seed, position, _DELIVERY)
    _seed(_collate_seed, _generators_of(dataset))


class SeededBatch(list[Any]):
    """A batch of indices that seeds every generator before each index it yields, and once more behind the last.

    Args:
        indices: what the dataset is asked for, in order.
        seed: of the epoch.
        position: of the first index in the epoch.
        dataset: whose own generators are seeded too; in a worker it is the worker's copy.
    """

    def __init__(self, indices: Any, seed: int, position: int, dataset: Any) -> None:
        super().__init__(indices)
        self.seed = seed
        self.position = position
        self.dataset = dataset
        self.num_passes = 0

    def __iter__(self) -> Iterator[Any]:
        global _collate_seed
        generators = _generators_of(self.dataset)
        # a second pass over the same batch must not repeat the draws of the first
        seed = self.seed if self.num_passes == 0 else derive(self.seed, self.num_passes)
        self.num_passes += 1
        for position, index in enumerate(super().__iter__(), self.position):
            _seed(derive(seed, position), generators)
            yield index
        _collate_seed = derive(seed, self.position, _COLLATE)
        _seed(_collate_seed, generators)

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickle_batch, (list(super().__iter__()), self.seed, self.position)


class _Carrier:
    """Takes an index to a worker and gives way to it there."""

    def __init__(self, index: Any, seed: int, position: int) -> None:
        self.index = index
        self.seed = seed
        self.position = position

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickle_plain, (self.index, self.seed, self.position)


class SeededIndex(_Carrier):
    """A single index of a loader without automatic batching (``batch_size=None``)."""


class SeededPlainBatch(_Carrier):
    """A batch that is no list, for a dataset whose ``__getitems__`` must see it as it is."""


def _dataset_here() -> Any:
    worker = get_worker_info()
    return None if worker is None else worker.dataset


def _unpickle_batch(indices: list[Any], seed: int, position: int) -> Any:
    dataset = _dataset_here()
    if dataset is None:  # copied or pickled outside a worker: nothing may be seeded there
        return indices
    deliver(seed, position, dataset)
    return SeededBatch(indices, seed, position, dataset)


def _unpickle_plain(index: Any, seed: int, position: int) -> Any:
    dataset = _dataset_here()
    if dataset is not None:
        deliver(seed, position, dataset)
    return index


class SeededCollate:
    """A collate function that owns generators, with them seeded before each call."""

    def __init__(self, collate: Callable[[Any], Any]) -> None:
        self.collate = collate

    def __call__(self, samples: Any) -> Any:
        """Seed the collate function's generators for this batch and call it."""
        seed_generators(_generators_of(self.collate), _collate_seed)
        return self.collate(samples)
