"""Lightning's combined train loader: resumable members, and what each had delivered when a batch was trained on.

Internals used (Lightning 2.6, utilities/combined_loader.py): ``CombinedLoader.flattened``, ``_iterator.iterators``, for
cycling loaders ``_iterator._consumed``, and ``_SUPPORTED_MODES``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from lightning_resume._package import package_of
from resume_core.capture.loader import LoaderIterator, Mark, ResumableLoader, is_resumable
from resume_core.ranks import Ranks

__all__ = ["TrainLoaders", "attach"]

_WATCHER = "_exact_resume"
_KEEP = 4  # the fetcher runs at most one batch ahead; the rest is room


def attach(loaders: Sequence[Any], *, key: int, first_slot: int, ranks: Ranks) -> list[ResumableLoader | None]:
    """Make each map-style DataLoader resumable; None stands for anything else.

    Args:
        loaders: the same object may come twice.
        key: the run's root of all data randomness.
        first_slot: slot of the first; training and validation use ranges of their own.
        ranks: each of which has such loaders.
    """
    return [
        _attached(loader, key, first_slot + place, ranks) if is_resumable(loader) else None
        for place, loader in enumerate(loaders)
    ]


def _attached(loader: Any, key: int, slot: int, ranks: Ranks) -> ResumableLoader:
    handle = ResumableLoader.of(loader)
    if handle is None:
        handle = ResumableLoader(loader, key=key, slot=slot, rank=ranks.rank, world_size=ranks.size)
    # one loader may serve twice: training decides, whichever came first (a sanity check is not run on a resume)
    handle.key, handle.slot = key, min(handle.slot, slot)
    return handle


class TrainLoaders:
    """The train loaders of one fit.

    Args:
        key: the run's root of all data randomness.
        epoch: gives the epoch that an ``iter()`` now belongs to.
        ranks: each of which has such loaders.
    """

    def __init__(self, *, key: int, epoch: Callable[[], int], ranks: Ranks) -> None:
        self.key = key
        self._ranks = ranks
        self._epoch = epoch
        self._handles: list[ResumableLoader | None] = []
        self._combined: Any = None
        self._saved: dict[str, Any] | None = None
        self._num_batches = self._first = 0
        self._marks: dict[int, tuple[list[Mark | None], list[bool] | None]] = {}
        self.deferred = True
        """Until the run knows where it goes on, iterators are made that have a length and deliver nothing."""

    @property
    def is_waiting(self) -> bool:
        """Whether loaders were set up and no real iterator of them was made yet."""
        return self._combined is not None and not self._marks

    def holds(self, handle: ResumableLoader | None) -> bool:
        """Whether ``handle`` is that of a train loader."""
        return handle is not None and any(handle is own for own in self._handles)

    def seek(self, saved: dict[str, Any]) -> None:
        """The next iterators go on where `state` was taken."""
        self._saved = saved

    def watch(self, combined: Any) -> None:
        """Take over a combined loader that Lightning has just built or built anew."""
        self._handles = attach(combined.flattened, key=self.key, first_slot=0, ranks=self._ranks)
        self._combined = combined
        if _WATCHER not in combined.__dict__:
            cls = type(combined)
            members = {"__iter__": _iterate, "__next__": _advance, "__module__": cls.__module__, "_plain": cls}
            combined.__class__ = type(cls.__name__, (cls,), members)
        combined.__dict__[_WATCHER] = self

    def begun(self) -> Iterator[None]:
        """Around the creation of the iterators of an epoch."""
        for handle, state in zip(self._handles, self._saved["loaders"] if self._saved else (), strict=False):
            if handle is not None and state is not None:
                handle.seek(state)
        for handle in self._handles:
            if handle is not None:
                handle.begin(self._epoch())
        yield
        saved, self._saved = self._saved, None
        self._num_batches = self._first = saved["num_batches"] if saved else 0
        if saved and saved["consumed"] is not None:
            self._combined._iterator._consumed = list(saved["consumed"])
        self._marks = {}
        self._note()

    def count_from(self, num_batches: int) -> None:
        """What was fetched so far begins at this number: Lightning may go on within an epoch from a ``ckpt_path``."""
        shift, self._first = num_batches - self._first, num_batches
        if shift:
            self._num_batches += shift
            self._marks = {number + shift: marks for number, marks in self._marks.items()}

    def advanced(self) -> None:
        """After a combined batch was fetched."""
        self._num_batches += 1
        self._note()

    def _note(self) -> None:
        iterator = self._combined._iterator
        marks = [it.mark if isinstance(it, LoaderIterator) else None for it in iterator.iterators]
        consumed = getattr(iterator, "_consumed", None)
        self._marks[self._num_batches] = (marks, None if consumed is None else list(consumed))
        self._marks.pop(self._num_batches - _KEEP, None)

    def state(self, num_batches: int) -> dict[str, Any]:
        """Where the loaders stood when ``num_batches`` of the epoch had been trained on; plain values only."""
        marks, consumed = self._marks[num_batches]
        loaders = [
            None if handle is None or mark is None else handle.state(mark)
            for handle, mark in zip(self._handles, marks, strict=True)
        ]
        return {"loaders": loaders, "num_batches": num_batches, "consumed": consumed}

    def samples(self, num_batches: int) -> list[dict[str, Any]]:
        """Which samples the last of ``num_batches`` of the epoch has, by loader; empty when that is not known."""
        marks, _ = self._marks.get(num_batches, ([], None))
        return [
            {"loader": place, "pass": [mark.epoch, mark.round], **handle.samples(mark)}
            for place, (handle, mark) in enumerate(zip(self._handles, marks, strict=False))
            if handle is not None and mark is not None
        ]

    def release(self) -> None:
        """Give the loaders back as they were."""
        for handle in self._handles:
            if handle is not None:
                handle.release()
        if self._combined is not None and self._combined.__dict__.pop(_WATCHER, None) is self:
            self._combined.__class__ = type(self._combined)._plain


def _iterate(combined: Any) -> Any:
    watcher: TrainLoaders = combined.__dict__[_WATCHER]
    if watcher.deferred:
        modes = package_of(combined)._SUPPORTED_MODES
        combined._iterator = modes[combined._mode]["iterator"](combined.flattened, combined.limits)
        return combined
    begun = watcher.begun()
    next(begun)
    type(combined)._plain.__iter__(combined)
    next(begun, None)
    return combined


def _advance(combined: Any) -> Any:
    watcher: TrainLoaders = combined.__dict__[_WATCHER]
    if watcher.deferred:
        raise StopIteration
    batch = type(combined)._plain.__next__(combined)
    watcher.advanced()
    return batch
