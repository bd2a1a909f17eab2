"""Iterators over a resumable loader: how far they are, and whose random draws they keep apart."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from resume_core.capture.rng import put_back_rng, save_rng

__all__ = ["FetchIterator", "LoaderIterator", "Mark", "Round"]

_KEEP = 16  # how many batches a training loop may lag behind what it was given: one a rank that is served from here


@dataclass(frozen=True)
class Mark:
    """How far an iterator had been used at some moment: ``num_batches`` of ``round`` of ``epoch``."""

    epoch: int
    round: int
    num_batches: int


@dataclass
class Round:
    """One pass over the loader.

    Attributes:
        epoch: as the training loop counts.
        round: which pass of the epoch.
        num_batches: delivered, those before a resume included.
        positions: samples consumed by number of batches, for the last few and those fetched ahead.
        units: what the dataset was asked for by number of batches, likewise; none for those before a resume.
        begun: whether an iterator delivers its batches.
        attributes: plain ones of the samplers, before the first index is taken.
        later: the same at the moment that is resumed at, until it has been.
    """

    epoch: int
    round: int
    num_batches: int = 0
    positions: dict[int, int] = field(default_factory=lambda: {0: 0})
    units: dict[int, Any] = field(default_factory=dict)
    begun: bool = False
    attributes: Mapping[str, Any] | None = None
    later: Mapping[str, Any] | None = None

    def holds(self, mark: Mark) -> bool:
        """Whether ``mark`` is a place in this round that is still known."""
        return (self.epoch, self.round) == (mark.epoch, mark.round) and mark.num_batches in self.positions


class Handle(Protocol):
    """What an iterator asks of the one that made it."""

    live: Round

    def own_code(self, at: Round) -> contextlib.AbstractContextManager[None]:
        """A block in which an ``__iter__`` of the user's runs."""
        ...


class _Delegate:
    """An iterator around another."""

    def __init__(self, inner: Iterator[Any]) -> None:
        self._inner = inner

    def __iter__(self) -> Iterator[Any]:
        return self

    def __len__(self) -> int:
        return len(self._inner)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_inner":
            raise AttributeError(name)
        return getattr(self._inner, name)


class FetchIterator(_Delegate):
    """The iterator of torch without workers; what is drawn while it fetches does not move the generators outside."""

    def __next__(self) -> Any:
        saved = save_rng()
        try:
            return next(self._inner)
        finally:
            put_back_rng(saved)


class LoaderIterator(_Delegate):
    """The loader's iterator, with what it has delivered counted.

    Args:
        inner: what the ``__iter__`` of the loader's class made.
        handle: of the loader.
        at: the round that it begins with.
        name: of the loader's class.
        own_code: whether that class has an ``__iter__`` of its own, which may draw: it does so from a seed of the
            batch, and the training RNG is kept out of it.
    """

    def __init__(self, inner: Iterator[Any], handle: Handle, at: Round, *, name: str, own_code: bool) -> None:
        super().__init__(inner)
        self._handle = handle
        self._at = at
        self._name = name
        self._own_code = own_code
        self._is_known = True

    @property
    def mark(self) -> Mark | None:
        """How far it has been used; None when the loader's own ``__iter__`` hides that."""
        return Mark(self._at.epoch, self._at.round, self._at.num_batches) if self._is_known else None

    def __next__(self) -> Any:
        self._handle.live = self._at
        if self._own_code:
            with self._handle.own_code(self._at):
                batch = next(self._inner)
        else:
            batch = next(self._inner)
        at = self._at = self._handle.live  # an __iter__ of the loader's own may have gone on to another round
        at.num_batches += 1
        at.positions.pop(at.num_batches - _KEEP, None)
        at.units.pop(at.num_batches - _KEEP, None)
        if at.num_batches not in at.positions and self._is_known:
            self._lose_count()
        return batch

    def _lose_count(self) -> None:
        self._is_known = False
        warnings.warn(
            f"{self._name}.__iter__ yields batches that DataLoader's own iterator did not fetch for it: after a resume "
            "this loader starts from its beginning, with other random draws",
            stacklevel=3,
        )
