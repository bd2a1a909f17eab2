"""A `torch.utils.data.DataLoader` made resumable in place.

The loader stays the user's object: same dataset, samplers, collate function, ``isinstance`` and attributes. Only its
``__iter__`` changes (a subclass of its own class is put in ``__class__``), and only while that builds an iterator do
seeded indices stand where the sampler stood.

Words: an *epoch* is what the training loop calls one; a loader that is shorter than another is iterated more than
once in it, each time a new *round*. The *position* counts the samples of a round that were consumed.
"""

from __future__ import annotations

import contextlib
import itertools
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from resume_core.capture.generators import find_generators, find_global_generators, seed_generators
from resume_core.capture.order import is_plain_batching, sampler_chain, sampler_salt, sequence
from resume_core.capture.rng import Stream, derive, preserved_rng, seed_rng
from resume_core.capture.seeding import (
    SeededBatch,
    SeededCollate,
    SeededIndex,
    SeededPlainBatch,
    deliver,
    forget_generators,
)

__all__ = ["LoaderIterator", "Mark", "ResumableLoader", "is_resumable", "loader_warnings"]

_ORDER, _SAMPLES, _WORKERS = 1, 2, 3  # the three uses of an epoch's seed
_KEEP = 8  # how many batches and rounds a training loop may lag behind what it was given
_HANDLE = "_exact_resume"


def is_resumable(loader: object) -> bool:
    """Whether the position of ``loader`` can be set: any map-style `DataLoader`."""
    return isinstance(loader, DataLoader) and not isinstance(loader.dataset, IterableDataset)


@dataclass(frozen=True)
class Mark:
    """How far an iterator had been used at some moment: ``num_batches`` of ``round`` of its epoch."""

    round: int
    num_batches: int


@dataclass
class _Round:
    """One pass over the loader."""

    epoch: int
    round: int
    num_batches: int = 0  # delivered, those before a resume included
    positions: dict[int, int] = field(default_factory=lambda: {0: 0})  # batches -> samples consumed, the last few


class ResumableLoader:
    """Order, seeds and position of one DataLoader.

    Args:
        loader: changed in place; see the module.
        key: the run's root of all data randomness.
        slot: which loader of the run it is, so that two loaders never share draws.
    """

    def __init__(self, loader: DataLoader[Any], *, key: int, slot: int) -> None:
        # held weakly: the loader holds this object, and a cycle would keep worker processes alive until a collection
        self._loader = weakref.ref(loader)
        self.key = key
        self.slot = slot
        self._sampler: Any = loader.sampler if loader.batch_sampler is None else loader.batch_sampler
        self._chain = sampler_chain(self._sampler)
        self.salt = next((salt for salt in map(sampler_salt, self._chain) if salt), 0)
        self._configured = _plain_attributes(self._chain)
        self._queue: list[_Round] = []  # rounds that the next calls of iter() take
        self._rounds: list[_Round] = []  # of this epoch, the last few
        self._adopt()

    @property
    def loader(self) -> DataLoader[Any]:
        """The loader, which its owner must keep alive."""
        loader = self._loader()
        if loader is None:
            raise ReferenceError(f"loader {self.slot} of the run no longer exists")
        return loader

    @classmethod
    def of(cls, loader: object) -> ResumableLoader | None:
        """The one that ``loader`` was given to, if any."""
        found = getattr(loader, "__dict__", {}).get(_HANDLE)
        return found if isinstance(found, ResumableLoader) else None

    def _adopt(self) -> None:
        attributes = self.loader.__dict__
        if attributes.get("_iterator") is not None:  # persistent workers that run on the plain order
            shutdown = getattr(attributes["_iterator"], "_shutdown_workers", None)
            if shutdown is not None:
                shutdown()
            attributes["_iterator"] = None
        attributes[_HANDLE] = self
        cls = type(self.loader)
        # a subclass with one base: assigning __class__ is legal only while the object layout stays the same
        members = {"__iter__": _iterate, "__module__": cls.__module__, "__qualname__": cls.__qualname__, "_plain": cls}
        self.loader.__class__ = type(cls.__name__, (cls,), members)

    def release(self) -> None:
        """Give the loader back as it was."""
        if self.loader.__dict__.pop(_HANDLE, None) is self:
            self.loader.__class__ = type(self.loader)._plain

    # ---- where it stands

    def begin(self, epoch: int) -> None:
        """The next ``iter()`` is the first of ``epoch``, or goes on where `seek` said if that was in it."""
        self._rounds.clear()
        if not self._queue or self._queue[0].epoch != epoch:
            self._queue = [_Round(epoch, 0)]

    def state(self, mark: Mark) -> dict[str, Any]:
        """What brings a fresh loader to where an iterator of this one stood at ``mark``; plain values only.

        Raises:
            ValueError: the mark is older than the last few batches.
        """
        at = next((r for r in self._rounds if r.round == mark.round), None)
        if at is None or mark.num_batches not in at.positions:
            raise ValueError(f"loader {self.slot} keeps no position for {mark}")
        return {
            "key": self.key,
            "salt": self.salt,
            "epoch": at.epoch,
            "round": at.round,
            "num_batches": mark.num_batches,
            "position": at.positions[mark.num_batches],
            "sampler": self._changed_attributes(),
        }

    def seek(self, state: Mapping[str, Any]) -> None:
        """One of the next calls of ``iter()`` delivers the batch after the one that ``state`` was taken at.

        Called once for each iterator that was live: a loader may be used in two places at once.
        """
        self.key, self.salt = state["key"], state["salt"]
        for name, value in state["sampler"].items():
            place, attribute = name.split(".", 1)
            if int(place) < len(self._chain):
                setattr(self._chain[int(place)], attribute, value)
        num_batches, position = state["num_batches"], state["position"]
        self._queue.append(_Round(state["epoch"], state["round"], num_batches, {num_batches: position}))

    def _changed_attributes(self) -> dict[str, Any]:
        """Plain attributes of samplers that moved since the loader was adopted, a DistributedSampler's seed too."""
        return {
            name: value
            for name, value in _plain_attributes(self._chain).items()
            if name.endswith(".seed") or self._configured.get(name) != value
        }

    # ---- iterating

    def _seed(self, use: int, at: _Round) -> int:
        return derive(self.key, self.slot, at.epoch, at.round, use)

    def iterate(self, cls: type[DataLoader[Any]]) -> Iterator[Any]:
        """An iterator over what is left of the round, as ``cls.__iter__`` builds it."""
        at = self._take_next()
        self._rounds = [*self._rounds[1 - _KEEP :], at]
        forget_generators(self.loader.dataset)
        for sampler in self._chain:
            if callable(getattr(sampler, "set_epoch", None)):
                sampler.set_epoch(at.epoch)
        with preserved_rng(), self._prepared(at):
            inner = cls.__iter__(self.loader)
        return LoaderIterator(inner, at, in_process=self.loader.num_workers == 0)

    def _take_next(self) -> _Round:
        if self._queue:
            return self._queue.pop(0)
        return _Round(self._rounds[-1].epoch, self._rounds[-1].round + 1) if self._rounds else _Round(0, 0)

    @contextlib.contextmanager
    def _prepared(self, at: _Round) -> Iterator[None]:
        """While an iterator is built: seeded indices, base seed and collate function in place of the plain ones."""
        attributes, generator = self.loader.__dict__, self.loader.generator
        name = "sampler" if self.loader.batch_sampler is None else "batch_sampler"
        # workers that persist keep the seed of the first round, which a resumed run has to give them as well
        seed = derive(self.key, self.slot, _WORKERS) if self.loader.persistent_workers else self._seed(_WORKERS, at)
        seed_rng(seed)
        saved = None if generator is None else generator.get_state()
        if generator is not None:
            generator.manual_seed(seed >> 1)
        collate = self.loader.collate_fn
        plain = {name: attributes[name], "collate_fn": collate}
        seeded = SeededCollate(collate) if find_generators(collate) else collate
        attributes.update({name: _Indices(self), "collate_fn": seeded})
        try:
            yield
        finally:
            attributes.update(plain)
            if generator is not None and saved is not None:
                generator.set_state(saved)

    def indices(self) -> Iterator[Any]:
        """Seeded indices from the live round's start on; with automatic batching, batches of them."""
        at = self._rounds[-1]
        seed, start = self._seed(_SAMPLES, at), at.positions[at.num_batches]
        number, position, single = at.num_batches, start, self.loader.batch_sampler is None
        for unit in self._stream(at, start):
            wrapped = self._single(unit, seed, position) if single else self._batch(unit, seed, position)
            if self.loader.num_workers == 0:
                deliver(seed, position, self.loader.dataset)
            position += 1 if single else len(unit)
            number += 1
            at.positions[number] = position
            yield wrapped

    def _stream(self, at: _Round, start: int) -> Iterator[Any]:
        """What the sampler, or batch sampler, yields in this round from ``start`` on."""
        if self.loader.batch_sampler is None:
            return self._units(self._sampler, at, start)
        if is_plain_batching(self._sampler):
            return self._batches(at, start)
        return self._batches_of_sampler(at, start)

    def _units(self, sampler: Any, at: _Round, start: int) -> Iterator[Any]:
        """What ``sampler`` yields in this round from ``start`` on."""
        seed = derive(self._seed(_ORDER, at), self.salt)
        known = sequence(sampler, seed)
        return iter(known[start:]) if known is not None else itertools.islice(self._drawn(sampler, seed), start, None)

    def _drawn(self, sampler: Any, seed: int) -> Iterator[Any]:
        """What ``sampler`` yields in a random stream of its own."""
        stream = Stream(seed)
        with stream:
            for link in sampler_chain(sampler):
                seed_generators(find_generators(link), seed)
            iterator = iter(sampler)
        while True:
            with stream:
                try:
                    unit = next(iterator)
                except StopIteration:
                    return
            yield unit

    def _batches(self, at: _Round, start: int) -> Iterator[list[Any]]:
        size, drop_last = self._sampler.batch_size, self._sampler.drop_last
        units = self._units(self._sampler.sampler, at, start)
        while batch := list(itertools.islice(units, size)):
            if len(batch) < size and drop_last:
                return
            yield batch

    def _batches_of_sampler(self, at: _Round, start: int) -> Iterator[Any]:
        """Batches of a batch sampler of the user's own, those before ``start`` taken as indices only."""
        position = 0
        for batch in self._drawn(self._sampler, derive(self._seed(_ORDER, at), self.salt)):
            if position >= start:
                yield batch
            position += len(batch)

    def _single(self, index: Any, seed: int, position: int) -> Any:
        return index if self.loader.num_workers == 0 else SeededIndex(index, seed, position)

    def _batch(self, batch: Any, seed: int, position: int) -> Any:
        takes_batches = callable(getattr(self.loader.dataset, "__getitems__", None))
        if takes_batches and type(batch) is not list:
            return batch if self.loader.num_workers == 0 else SeededPlainBatch(batch, seed, position)
        return SeededBatch(batch, seed, position, self.loader.dataset)


def _iterate(loader: Any) -> Iterator[Any]:
    handle: ResumableLoader = loader.__dict__[_HANDLE]
    return handle.iterate(type(loader)._plain)


class _Indices:
    """Stands where the sampler stood while an iterator is built."""

    def __init__(self, handle: ResumableLoader) -> None:
        self._handle = handle

    def __iter__(self) -> Iterator[Any]:
        return self._handle.indices()

    def __len__(self) -> int:
        return len(self._handle._sampler)


class LoaderIterator:
    """The loader's iterator, with what it has delivered counted and the training RNG kept out of its draws."""

    def __init__(self, inner: Iterator[Any], at: _Round, *, in_process: bool) -> None:
        self._inner = inner
        self._at = at
        self._in_process = in_process

    @property
    def mark(self) -> Mark:
        """How far it has been used."""
        return Mark(self._at.round, self._at.num_batches)

    def __iter__(self) -> LoaderIterator:
        return self

    def __next__(self) -> Any:
        if self._in_process:
            with preserved_rng():
                batch = next(self._inner)
        else:
            batch = next(self._inner)
        self._at.num_batches += 1
        self._at.positions.pop(self._at.num_batches - _KEEP, None)
        return batch

    def __len__(self) -> int:
        return len(self._inner)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_inner":
            raise AttributeError(name)
        return getattr(self._inner, name)


def _plain_attributes(chain: tuple[Any, ...]) -> dict[str, Any]:
    return {
        f"{place}.{name}": value
        for place, sampler in enumerate(chain)
        for name, value in getattr(sampler, "__dict__", {}).items()
        if value is None or type(value) in (bool, int, float, str)
    }


def loader_warnings(loader: object) -> list[str]:
    """What about ``loader`` will not be exact after a resume, one sentence each."""
    if not isinstance(loader, DataLoader):
        return [f"a {type(loader).__name__} is no DataLoader: after a resume it starts from its beginning again"]
    if isinstance(loader.dataset, IterableDataset):
        name = type(loader.dataset).__name__
        return [f"{name} is an IterableDataset: after a resume it starts from its beginning, with other random draws"]
    notes = [
        f"{name} is a generator outside the dataset: what it draws for a sample will differ after a resume; "
        "keep it on the dataset or transform instead"
        for name in find_global_generators((loader.dataset, loader.collate_fn))
    ]
    if getattr(loader, "in_order", True) is False:
        notes.append("in_order=False: the order of batches depends on timing, so no run can be repeated exactly")
    return notes
