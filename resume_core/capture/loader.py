"""A `torch.utils.data.DataLoader` made resumable in place.

The loader stays the user's object: same dataset, samplers, collate function, ``isinstance`` and attributes. Only its
``__iter__`` changes (a subclass of its own class is put in ``__class__``), and only while that builds an iterator do
seeded indices stand where the sampler stood.

Words: an *epoch* is what the training loop calls one; a loader that is shorter than another is iterated more than
once in it, each time a new *round*. The *position* counts the samples of a round that were consumed.
"""

from __future__ import annotations

import contextlib
import warnings
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from resume_core.capture.generators import find_generators, find_global_generators
from resume_core.capture.order import order, sampler_chain, sampler_salt
from resume_core.capture.rng import derive, preserved_rng, seed_rng
from resume_core.capture.seeding import DataGenerators, SeededCollate, Sent, seeded

__all__ = ["LoaderIterator", "Mark", "ResumableLoader", "is_resumable", "loader_warnings"]

_ORDER, _SAMPLES, _WORKERS = 1, 2, 3  # the three uses of an epoch's seed
_KEEP = 8  # how many batches and rounds a training loop may lag behind what it was given
_HANDLE = "_exact_resume"


def is_resumable(loader: object) -> bool:
    """Whether the position of ``loader`` can be set: any map-style `DataLoader`."""
    return isinstance(loader, DataLoader) and not isinstance(loader.dataset, IterableDataset)


@dataclass(frozen=True)
class Mark:
    """How far an iterator had been used at some moment: ``num_batches`` of ``round`` of ``epoch``."""

    epoch: int
    round: int
    num_batches: int


@dataclass
class _Round:
    """One pass over the loader."""

    epoch: int
    round: int
    num_batches: int = 0  # delivered, those before a resume included
    positions: dict[int, int] = field(default_factory=lambda: {0: 0})  # batches -> samples consumed, the last few
    begun: bool = False
    attributes: Mapping[str, Any] | None = None  # plain ones of the samplers, before the first index is taken
    later: Mapping[str, Any] | None = None  # and at the moment that is resumed at, while it has not been

    def holds(self, mark: Mark) -> bool:
        return (self.epoch, self.round) == (mark.epoch, mark.round) and mark.num_batches in self.positions


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
        self._rounds: list[_Round] = []  # the last few
        self._epoch = self._next_round = 0
        self._live = _Round(0, 0)  # that of the iterator which is built or used now
        self._building: _Round | None = None
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
        _end_workers(self.loader)  # they run on the plain order
        self.loader.__dict__[_HANDLE] = self
        cls = getattr(type(self.loader), "_plain", type(self.loader))  # it may be made anew from a class of ours
        # a subclass with one base: assigning __class__ is legal only while the object layout stays the same
        members = {
            "__iter__": _iterate,
            "_get_iterator": _get_iterator,
            "__reduce_ex__": _reduce,
            "__module__": cls.__module__,
            "__qualname__": cls.__qualname__,
            "_plain": cls,
        }
        self.loader.__class__ = type(cls.__name__, (cls,), members)

    def release(self) -> None:
        """Give the loader back as it was."""
        if self.loader.__dict__.pop(_HANDLE, None) is self:
            self.loader.__class__ = type(self.loader)._plain
            _end_workers(self.loader)

    # ---- where it stands

    def begin(self, epoch: int) -> None:
        """The next ``iter()`` is the first of ``epoch``, or goes on where `seek` said if that was in it."""
        self._epoch, self._next_round = epoch, 0
        if self._queue and self._queue[0].epoch != epoch:
            self._set_attributes(self._queue[-1].later or {})
            self._queue.clear()

    def state(self, mark: Mark) -> dict[str, Any]:
        """What brings a fresh loader to where an iterator of this one stood at ``mark``; plain values only.

        Raises:
            ValueError: the mark is older than the last few batches.
        """
        at = next((r for r in self._rounds if r.holds(mark)), None)
        if at is None:
            raise ValueError(f"loader {self.slot} keeps no position for {mark}")
        now = self._changed(_plain_attributes(self._chain))
        return {
            "key": self.key,
            "salt": self.salt,
            "epoch": at.epoch,
            "round": at.round,
            "num_batches": mark.num_batches,
            "position": at.positions[mark.num_batches],
            "sampler": now if at.attributes is None else self._changed(at.attributes),
            "sampler_later": now if at.later is None else dict(at.later),
        }

    def seek(self, state: Mapping[str, Any]) -> None:
        """One of the next calls of ``iter()`` delivers the batch after the one that ``state`` was taken at.

        Called once for each iterator that was live: a loader may be used in two places at once.
        """
        self.key, self.salt = state["key"], state["salt"]
        at = _Round(state["epoch"], state["round"], state["num_batches"], {state["num_batches"]: state["position"]})
        at.attributes, at.later = state["sampler"], state["sampler_later"]
        self._queue.append(at)

    def _changed(self, attributes: Mapping[str, Any]) -> dict[str, Any]:
        """Those that moved since the loader was adopted, and a DistributedSampler's seed."""
        plain = self._configured
        return {
            name: value
            for name, value in attributes.items()
            if name.endswith(".seed") or name not in plain or plain[name] != value
        }

    def _set_attributes(self, attributes: Mapping[str, Any]) -> None:
        for name, value in attributes.items():
            place, attribute = name.split(".", 1)
            if int(place) < len(self._chain):
                setattr(self._chain[int(place)], attribute, value)

    # ---- building an iterator

    def _seed(self, use: int, at: _Round) -> int:
        return derive(self.key, self.slot, at.epoch, at.round, use)

    def iterate(self, cls: type[DataLoader[Any]]) -> Iterator[Any]:
        """An iterator over what is left of the round, as ``cls.__iter__`` makes it."""
        at = self._live = self._take_next()
        for sampler in self._chain:
            if callable(getattr(sampler, "set_epoch", None)):
                sampler.set_epoch(at.epoch)
        with preserved_rng():
            inner = cls.__iter__(self.loader)
        return LoaderIterator(inner, self, at)

    def build(self, cls: type[DataLoader[Any]]) -> Any:
        """The iterator of torch that ``cls.__iter__`` asks for."""
        self._building = self._claim()
        try:
            with preserved_rng(), self._prepared(self._building):
                return cls._get_iterator(self.loader)
        finally:
            self._building = None

    def _take_next(self) -> _Round:
        at = self._queue.pop(0) if self._queue else _Round(self._epoch, self._next_round)
        if at.epoch != self._epoch:
            self._epoch, self._next_round = at.epoch, 0
        self._next_round = max(self._next_round, at.round + 1)
        self._rounds = [*self._rounds[1 - _KEEP :], at]
        return at

    def _claim(self) -> _Round:
        """The live round, or the next if an iterator has that: an ``__iter__`` may go over the data more than once."""
        if self._live.begun:
            self._live = self._take_next()
        self._live.begun = True
        return self._live

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
        own = find_generators(collate)
        attributes.update({name: _Indices(self), "collate_fn": SeededCollate(collate, own) if own else collate})
        try:
            yield
        finally:
            attributes.update(plain)
            if generator is not None and saved is not None:
                generator.set_state(saved)

    # ---- indices

    def indices(self) -> Iterator[Any]:
        """Seeded indices of the live round from its start on; with automatic batching, batches of them."""
        loader = self.loader
        data = DataGenerators(loader.dataset) if loader.num_workers == 0 else None
        return self._indices(self._building or self._claim(), loader.batch_sampler is None, data)

    def _indices(self, at: _Round, single: bool, data: DataGenerators | None) -> Iterator[Any]:
        seed, number, position = self._seed(_SAMPLES, at), at.num_batches, at.positions[at.num_batches]
        if at.attributes is not None:
            self._set_attributes(at.attributes)
        at.attributes = _plain_attributes(self._chain)
        units = order(self._sampler, derive(self._seed(_ORDER, at), self.salt), position, single=single)
        self._catch_up(at, position)
        for unit in units:
            size = 1 if single else len(unit)
            number += 1
            at.positions[number] = position + size
            yield Sent(unit, seed, position, single) if data is None else seeded(unit, seed, position, single, data)
            position += size

    def _catch_up(self, at: _Round, start: int) -> None:
        """Give the samplers' attributes what others, not their own iteration, did to them in the skipped part."""
        later, at.later = at.later, None
        if later and start and at.attributes is not None:
            now, first = _plain_attributes(self._chain), at.attributes
            self._set_attributes({name: value for name, value in later.items() if now.get(name) == first.get(name)})


def _end_workers(loader: DataLoader[Any]) -> None:
    """End persistent workers; the next iterator starts others."""
    shutdown = getattr(loader.__dict__.get("_iterator"), "_shutdown_workers", None)
    if shutdown is not None:
        shutdown()
        loader.__dict__["_iterator"] = None


# ---- what takes the place of the loader's own methods


def _iterate(loader: Any) -> Iterator[Any]:
    handle, cls = ResumableLoader.of(loader), type(loader)._plain
    return iter(cls.__iter__(loader)) if handle is None else handle.iterate(cls)


def _get_iterator(loader: Any) -> Any:
    handle, cls = ResumableLoader.of(loader), type(loader)._plain
    return cls._get_iterator(loader) if handle is None else handle.build(cls)


def _reduce(loader: Any, protocol: Any) -> tuple[Any, ...]:
    """Copies and pickles are plain loaders again."""
    attributes = {name: value for name, value in loader.__dict__.items() if name != _HANDLE}
    return _blank, (type(loader)._plain,), attributes


def _blank(cls: Any) -> Any:
    return cls.__new__(cls)


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

    def __init__(self, inner: Iterator[Any], handle: ResumableLoader, at: _Round) -> None:
        self._inner = inner
        self._handle = handle
        self._at = at
        self._in_process = handle.loader.num_workers == 0
        self._is_known = True

    @property
    def mark(self) -> Mark | None:
        """How far it has been used; None when the loader's own ``__iter__`` hides that."""
        return Mark(self._at.epoch, self._at.round, self._at.num_batches) if self._is_known else None

    def __iter__(self) -> LoaderIterator:
        return self

    def __next__(self) -> Any:
        self._handle._live = self._at
        if self._in_process:
            with preserved_rng():
                batch = next(self._inner)
        else:
            batch = next(self._inner)
        at = self._at = self._handle._live  # the loader's own __iter__ may have gone on to another round
        at.num_batches += 1
        at.positions.pop(at.num_batches - _KEEP, None)
        if at.num_batches not in at.positions and self._is_known:
            self._lose_count()
        return batch

    def _lose_count(self) -> None:
        self._is_known = False
        warnings.warn(
            f"{type(self._handle.loader).__name__}.__iter__ yields batches that DataLoader's own iterator did not "
            "fetch for it: after a resume this loader starts from its beginning, with other random draws",
            stacklevel=3,
        )

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
        "keep it on the dataset, transform or sampler instead"
        for name in find_global_generators((loader.dataset, loader.collate_fn, loader.sampler, loader.batch_sampler))
    ]
    if getattr(loader, "in_order", True) is False:
        notes.append("in_order=False: the order of batches depends on timing, so no run can be repeated exactly")
    return notes
