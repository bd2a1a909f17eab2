"""Indices that carry their seeds to where the sample is fetched.

Everything random about a sample is a function of (seed of the epoch, place of the sample). With one rank its place is
its position in the epoch; with several, their positions take turns, so that no two ranks ever share draws. The index
objects that a sampler hands to a fetcher do the seeding, so no dataset, collate function or worker needs a wrapper:

* a batch of indices is a list that reseeds before each index it yields: torch's fetcher iterates it and fetches each
  sample right after (`torch.utils.data._utils.fetch`);
* a worker is sent the plain indices and makes that list as it unpickles them, which torch does on the worker's main
  thread right before the fetch;
* a single index, and whatever ``__getitems__`` draws before it goes over the list or without doing so, is seeded as
  the fetch begins.

The same draws follow with no worker, with fork, spawn and forkserver.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from torch.utils.data import get_worker_info

from resume_core.capture.generators import GeneratorLike, find_generators, seed_generators
from resume_core.capture.rng import derive, extend, seed_parts, seed_rng, split_seed

__all__ = ["DataGenerators", "SeededBatch", "SeededCollate", "Sent", "deliver", "seeded"]

_COLLATE = -1  # words that no position takes
_DELIVERY = -2
_SEARCH_AGAIN = 2

_collate_words: tuple[int, ...] = (0,)  # hashed only for a collate function that owns generators
_of_worker: DataGenerators | None = None


class DataGenerators:
    """The generators that a dataset owns, for one round in the training process, or for the life of a worker."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset
        self.found = find_generators(dataset)
        self.takes_batches = callable(getattr(dataset, "__getitems__", None))
        # Hugging Face goes over the indices three times and transforms the batch as one: seeds in between cost more
        # than the read and could not be used
        self.transforms_batches = isinstance(dataset, getattr(sys.modules.get("datasets"), "Dataset", ()))
        self.num_fetches = 0

    def seed(self, seed: int) -> None:
        """Seed them and the global ones."""
        seed_rng(seed)
        if self.found:
            seed_generators(self.found, seed)

    def search_again(self) -> None:
        """For the second fetch, search once more: some datasets make their generators when they are first read."""
        self.num_fetches += 1
        if self.num_fetches != _SEARCH_AGAIN:
            return
        before, self.found = self.found, find_generators(self.dataset)
        if len(self.found) > len(before):
            warnings.warn(
                f"{type(self.dataset).__name__} makes random generators while it is read: what they draw for the first "
                "batch after a resume will differ; make them in its __init__ instead",
                stacklevel=2,
            )


def deliver(seed: int, place: int, generators: DataGenerators) -> None:
    """Seed for a fetch that starts now and for what draws before any single sample is fetched."""
    global _collate_words
    _collate_words = (seed, place, _DELIVERY)
    generators.seed(derive(*_collate_words))


class SeededBatch(list[Any]):
    """A batch of indices that seeds every generator before each index it yields.

    Args:
        indices: what the dataset is asked for, in order.
        seed: of the epoch.
        place: of the first index in the epoch, over all ranks.
        generators: those of the dataset, seeded too; in a worker of the worker's copy.
        apart: from the place of one index to the next, the number of ranks.
    """

    def __init__(self, indices: Any, seed: int, place: int, generators: DataGenerators, apart: int = 1) -> None:
        super().__init__(indices)
        self.seed = seed
        self.place, self.apart = place, apart
        self.generators = generators
        self.num_passes = 0

    def __iter__(self) -> Iterator[Any]:
        global _collate_words
        # a second pass over the same batch must not repeat the draws of the first
        seed = self.seed if self.num_passes == 0 else derive(self.seed, self.num_passes)
        self.num_passes += 1
        of_epoch = derive(seed)
        places = range(self.place, self.place + len(self) * self.apart, self.apart)
        # all at once: between samples caches are cold, and then the hash costs ten times as much
        seeds = [extend(of_epoch, place) for place in places]
        if self.generators.found:
            for of_sample, index in zip(seeds, super().__iter__(), strict=True):
                self.generators.seed(of_sample)
                yield index
        else:
            for parts, index in zip([*map(split_seed, seeds)], super().__iter__(), strict=True):
                seed_parts(*parts)
                yield index
        # what the collate function draws from the global generators goes on behind the last sample's draws; generators
        # of its own are seeded by `SeededCollate`
        _collate_words = (seed, self.place, _COLLATE)

    def __reduce__(self) -> tuple[Any, ...]:
        return list, (list(super().__iter__()),)  # copies seed nothing


def seeded(unit: Any, seed: int, place: int, data: DataGenerators, *, single: bool, apart: int = 1) -> Any:
    """What a fetcher in this process is given for ``unit``; called right before the fetch.

    Args:
        unit: an index, or a batch of them.
        seed: of the epoch.
        place: of the first index in the epoch, over all ranks.
        data: the generators of the dataset.
        single: whether ``unit`` is one index (``batch_size=None``).
        apart: from the place of one index to the next, the number of ranks.
    """
    if data.num_fetches < _SEARCH_AGAIN:
        data.search_again()
    if single or data.takes_batches:
        deliver(seed, place, data)
    # a batch that is no list is seeded as a whole: __getitems__ must see it as it is
    whole = single or data.transforms_batches or (data.takes_batches and type(unit) is not list)
    return unit if whole else SeededBatch(unit, seed, place, data, apart)


class Sent:
    """Takes an index, or a batch of them, to a worker and gives way there to what `seeded` makes of it."""

    def __init__(self, unit: Any, seed: int, place: int, *, single: bool, apart: int = 1) -> None:
        self.words = (unit, seed, place, single, apart)

    def __reduce__(self) -> tuple[Any, ...]:
        return _receive, self.words


def _receive(unit: Any, seed: int, place: int, single: bool, apart: int) -> Any:
    data = _of_worker or _find_generators()
    return unit if data is None else seeded(unit, seed, place, data, single=single, apart=apart)


def _find_generators() -> DataGenerators | None:
    """Those of this worker; None in any other process, where an index that is unpickled or copied seeds nothing."""
    global _of_worker
    worker = get_worker_info()
    if worker is not None:
        _of_worker = DataGenerators(worker.dataset)
    return _of_worker


class SeededCollate:
    """A collate function that owns generators, with them seeded before each call.

    Args:
        collate: what the loader was given.
        generators: its own.
    """

    def __init__(self, collate: Callable[[Any], Any], generators: tuple[GeneratorLike, ...]) -> None:
        self.collate = collate
        self.generators = generators

    def __call__(self, samples: Any) -> Any:
        """Seed the collate function's generators for this batch and call it."""
        seed_generators(self.generators, derive(*_collate_words))
        return self.collate(samples)
