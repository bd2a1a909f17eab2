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
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from resume_core.capture.generators import find_generators
from resume_core.capture.iterators import FetchIterator, LoaderIterator, Mark, Round
from resume_core.capture.order import order, plain_ids, sampler_chain, sampler_salt
from resume_core.capture.rng import derive, preserved_rng, seed_rng
from resume_core.capture.sampler_attributes import SamplerAttributes
from resume_core.capture.seeding import DataGenerators, SeededCollate, Sent, seeded
from resume_core.capture.stateful import (
    end_iterator,
    forget_loaded,
    has_plain_iter,
    makes_early_iterators,
    state_without_iterator,
)
from resume_core.capture.workers import release_at_exit, release_half_made, spared

__all__ = ["LoaderIterator", "Mark", "ResumableLoader", "is_resumable"]

_ORDER, _SAMPLES, _WORKERS, _OWN_CODE = 1, 2, 3, 4  # the uses of an epoch's seed
_KEEP_ROUNDS = 64  # validations on the training loader are rounds of it too
_HANDLE = "_exact_resume"


def is_resumable(loader: object) -> bool:
    """Whether the position of ``loader`` can be set: any map-style `DataLoader`."""
    return isinstance(loader, DataLoader) and not isinstance(loader.dataset, IterableDataset)


class ResumableLoader:
    """Order, seeds and position of one DataLoader.

    Args:
        loader: changed in place; see the module.
        key: the run's root of all data randomness.
        slot: which loader of the run it is, so that two loaders never share draws.
        rank: of this process.
        world_size: how many ranks have such a loader; what its samples draw differs between them.
        sets_epoch: whether samplers are told the epoch when an iterator is made; False where a framework does it.
    """

    def __init__(
        self,
        loader: DataLoader[Any],
        *,
        key: int,
        slot: int,
        rank: int = 0,
        world_size: int = 1,
        sets_epoch: bool = True,
    ) -> None:
        # held weakly: the loader holds this object, and a cycle would keep worker processes alive until a collection
        self._loader = weakref.ref(loader)
        self.key = key
        self.slot = slot
        self.rank, self.world_size = rank, world_size
        self._sets_epoch = sets_epoch
        self._sampler: Any = loader.sampler if loader.batch_sampler is None else loader.batch_sampler
        self._chain = sampler_chain(self._sampler)
        self.salt = next((salt for salt in map(sampler_salt, self._chain) if salt), 0)
        self._attributes = SamplerAttributes(self._chain)
        self._queue: list[Round] = []  # rounds that the next calls of iter() take
        self._rounds: list[Round] = []  # the last few
        self._epoch = self._next_round = 0
        self.live = Round(0, 0)  # that of the iterator which is built or used now
        self._building: Round | None = None
        self._in_own_code = False
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
        end_iterator(self.loader)  # its workers run on the plain order
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
        if makes_early_iterators(self.loader):
            members["state_dict"] = _state_dict
        self.loader.__class__ = type(cls.__name__, (cls,), members)

    def release(self) -> None:
        """Give the loader back as it was."""
        if self.loader.__dict__.pop(_HANDLE, None) is self:
            self.loader.__class__ = type(self.loader)._plain
            end_iterator(self.loader)

    # ---- where it stands

    def begin(self, epoch: int, round_: int | None = None) -> None:
        """The next ``iter()`` is the first of ``epoch``, or goes on where `seek` said if that was in it.

        Args:
            epoch: as the training loop counts.
            round_: of the epoch, where the caller counts them; a position in another one is not gone on from then.
        """
        self._epoch, self._next_round = epoch, round_ or 0
        if self._queue and (self._queue[0].epoch != epoch or round_ not in (None, self._queue[0].round)):
            self._attributes.set(self._queue[-1].later or {})
            self._queue.clear()
        if self.live.later is not None and self.live.epoch != epoch:
            # sought at the end of its epoch: nothing was asked for since, which would have set them
            self._attributes.set(self.live.later)
            self.live.later = None

    def state(self, mark: Mark) -> dict[str, Any]:
        """What brings a fresh loader to where an iterator of this one stood at ``mark``; plain values only.

        Raises:
            ValueError: the mark is older than the last few batches.
        """
        # the newest: a round may be begun twice, as Lightning does at the start of a second fit
        at = next((r for r in reversed(self._rounds) if r.holds(mark)), None)
        if at is None:
            raise ValueError(f"loader {self.slot} keeps no position for {mark}")
        first, now = self._attributes.moved(at)
        return {
            "key": self.key,
            "salt": self.salt,
            "epoch": at.epoch,
            "round": at.round,
            "num_batches": mark.num_batches,
            "position": at.positions[mark.num_batches],
            "sampler": first,
            "sampler_later": now,
        }

    def samples(self, mark: Mark) -> dict[str, Any]:
        """Which samples the batch before ``mark`` has, as the sampler gave them; plain values.

        Returns:
            ``num_batches`` and ``position`` at the mark; ``ids``, and how many those are. None for what is not known:
            the batch was fetched before a resume, or is older than the last few.
        """
        at = next((r for r in reversed(self._rounds) if r.holds(mark)), None)
        unit = None if at is None else at.units.get(mark.num_batches)
        ids = None if unit is None else plain_ids([unit] if self.loader.batch_sampler is None else unit)
        return {
            "num_batches": mark.num_batches,
            "position": None if at is None else at.positions[mark.num_batches],
            "ids": ids,
            "num_samples": 0 if unit is None or ids is None else 1 if self.loader.batch_sampler is None else len(unit),
        }

    def passed_over(self, epoch: int, num_batches: int) -> dict[str, Any]:
        """What `seek` takes to go on behind batches that were used elsewhere; indices alone are gone over."""
        at, single = Round(epoch, 0), self.loader.batch_sampler is None
        units = order(self._sampler, derive(self._seed(_ORDER, at), self.salt), 0, single=single)
        sizes = [1 if single else len(unit) for unit in itertools.islice(units, num_batches)]
        marks = {"key": self.key, "salt": self.salt, "epoch": epoch, "round": 0, "num_batches": num_batches}
        return {**marks, "position": sum(sizes), "sampler": {}, "sampler_later": {}}

    def seek(self, state: Mapping[str, Any]) -> None:
        """One of the next calls of ``iter()`` delivers the batch after the one that ``state`` was taken at.

        Called once for each iterator that was live: a loader may be used in two places at once.
        """
        self.key, self.salt = state["key"], state["salt"]
        at = Round(state["epoch"], state["round"], state["num_batches"], {state["num_batches"]: state["position"]})
        at.attributes, at.later = state["sampler"], state["sampler_later"]
        self._queue.append(at)

    # ---- building an iterator

    def _seed(self, use: int, at: Round) -> int:
        return derive(self.key, self.slot, at.epoch, at.round, use)

    def iterate(self, cls: type[DataLoader[Any]]) -> Iterator[Any]:
        """An iterator over what is left of the round, as ``cls.__iter__`` makes it."""
        at = self.live = self._take_next()
        for sampler in self._chain if self._sets_epoch else ():
            if callable(getattr(sampler, "set_epoch", None)):
                sampler.set_epoch(at.epoch)
        with self.own_code(at):
            inner = cls.__iter__(self.loader)
        return LoaderIterator(inner, self, at, name=cls.__name__, own_code=not has_plain_iter(cls))

    @contextlib.contextmanager
    def own_code(self, at: Round) -> Iterator[None]:
        """A block for an ``__iter__`` of the user's: what it draws is seeded, and the training RNG kept out of it."""
        with preserved_rng():
            self._in_own_code = True
            try:
                self._seed_own_code(at)
                yield
            finally:
                self._in_own_code = False

    def _seed_own_code(self, at: Round) -> None:
        """For what is drawn before the data is gone over, then for each batch."""
        seed = self._seed(_OWN_CODE, at)
        if self._in_own_code:
            seed_rng(derive(seed, at.num_batches) if at.begun else seed)

    def build(self, cls: type[DataLoader[Any]]) -> Any:
        """The iterator of torch that ``cls.__iter__`` asks for."""
        at = self._building = self._claim()
        forget_loaded(self.loader)
        try:
            with preserved_rng(), self._prepared(at), spared(self.loader.__dict__):
                inner = cls._get_iterator(self.loader)
        except BaseException as error:
            release_half_made(error)
            raise
        finally:
            self._building = None
        self._seed_own_code(at)
        if self.loader.num_workers == 0:
            return FetchIterator(inner)
        release_at_exit(inner)
        return inner

    def _take_next(self) -> Round:
        at = self._queue.pop(0) if self._queue else Round(self._epoch, self._next_round)
        if at.epoch != self._epoch:
            self._epoch, self._next_round = at.epoch, 0
        self._next_round = max(self._next_round, at.round + 1)
        self._rounds = [*self._rounds[1 - _KEEP_ROUNDS :], at]
        return at

    def _claim(self) -> Round:
        """The live round, or the next if an iterator has that: an ``__iter__`` may go over the data more than once."""
        if self.live.begun:
            self.live = self._take_next()
        self.live.begun = True
        return self.live

    @contextlib.contextmanager
    def _prepared(self, at: Round) -> Iterator[None]:
        """While an iterator is built: seeded indices, base seed and collate function in place of the plain ones."""
        attributes, generator = self.loader.__dict__, self.loader.generator
        name = "sampler" if self.loader.batch_sampler is None else "batch_sampler"
        # workers that persist keep the seed of the first round, which a resumed run has to give them as well
        seed = derive(self.key, self.slot, _WORKERS) if self.loader.persistent_workers else self._seed(_WORKERS, at)
        seed = derive(seed, self.rank)
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
        at = self._building or self._claim()
        if self._building is None:  # of workers that were there already
            self._seed_own_code(at)
        return self._indices(at, data, single=loader.batch_sampler is None)

    def _indices(self, at: Round, data: DataGenerators | None, *, single: bool) -> Iterator[Any]:
        # the loader is asked nothing in here: an iterator may outlive it
        seed, number, position = self._seed(_SAMPLES, at), at.num_batches, at.positions[at.num_batches]
        self._attributes.begin(at)
        rank, apart = self.rank, self.world_size
        units = order(self._sampler, derive(self._seed(_ORDER, at), self.salt), position, single=single)
        self._attributes.catch_up(at, position)
        for unit in units:
            size = 1 if single else len(unit)
            number += 1
            at.positions[number], at.units[number] = position + size, unit
            place = position * apart + rank
            if data is None:
                yield Sent(unit, seed, place, single=single, apart=apart)
            else:
                yield seeded(unit, seed, place, data, single=single, apart=apart)
            position += size


# ---- what takes the place of the loader's own methods


def _iterate(loader: Any) -> Iterator[Any]:
    handle, cls = ResumableLoader.of(loader), type(loader)._plain
    return iter(cls.__iter__(loader)) if handle is None else handle.iterate(cls)


def _get_iterator(loader: Any) -> Any:
    handle, cls = ResumableLoader.of(loader), type(loader)._plain
    return cls._get_iterator(loader) if handle is None else handle.build(cls)


def _state_dict(loader: Any) -> Any:
    return state_without_iterator(loader, type(loader)._plain)


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
