"""What the Hugging Face Trainer's loop does, as it tells: its passes over loaders, evaluations, and boundaries.

An Accelerate script is watched from outside, while the Trainer's own loop says where it is. Boundaries are:

- before the batches of an accumulation window are taken, all hooks of the step before having run;
- between two batches of a window;
- when an epoch has no more batches, before the hooks at its end;
- when an epoch is over, those hooks and what they asked for (logging, evaluation, saving) included.

Whatever else is gone over while the run lasts is evaluation: what it draws is a function of how many batches were
trained on, and of how many evaluations there were since the last of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from accelerate_resume._passes import Pass, TrackedLoader
from accelerate_resume._place import AT_FETCH, BETWEEN, Place
from accelerate_resume._tracker import Boundary, Tracker

__all__ = ["TrainerTracker"]

_EVALUATION = 1  # the slot of loaders that are not trained on


class _Training:
    """The iterator over the train loader."""

    def __init__(self, tracker: TrainerTracker, loader: TrackedLoader, plain: Callable[[], Iterator[Any]]) -> None:
        self._tracker, self._loader, self._plain = tracker, loader, plain
        self._inner: Iterator[Any] | None = None

    def __iter__(self) -> _Training:
        return self

    def __next__(self) -> Any:
        if self._inner is not None:
            return next(self._inner)
        one = self._tracker.one
        self._loader.begin(one)
        self._inner = self._plain()
        batch = next(self._inner)
        self._loader.begun(one)
        self._tracker.arrive_now()
        return batch


class _Evaluation:
    """The iterator over any other loader."""

    def __init__(self, tracker: TrainerTracker, loader: TrackedLoader, plain: Callable[[], Iterator[Any]]) -> None:
        self._tracker, self._loader, self._plain = tracker, loader, plain
        self._inner: Iterator[Any] | None = None

    def __iter__(self) -> _Evaluation:
        return self

    def __next__(self) -> Any:
        if self._inner is None:
            self._tracker.begin_evaluation(self._loader)
            self._inner = self._plain()
        return next(self._inner)


class TrainerTracker(Tracker):
    """Follows a run whose loop says where it is.

    Args:
        boundary: called at each.
        arrive: called when the moment is there that the run goes on from.
    """

    def __init__(self, boundary: Boundary, arrive: Callable[[], None]) -> None:
        super().__init__(boundary, arrive)
        self.train: TrackedLoader | None = None
        self.one = Pass()
        self.num_evaluations = 0  # since the last batch that was trained on
        self._is_in_epoch = False
        self.settle_folder: Callable[[], None] = lambda: None
        """Called at each boundary: what the Trainer has written since the one before gets what it lacks."""

    def track(self, loader: Any, salt: int) -> TrackedLoader:
        """Follow a loader that was just prepared; those that come when the run goes on are its own to keep."""
        if self.train is None:
            return super().track(loader, salt)
        return TrackedLoader(loader, _EVALUATION, salt, self._iterate)

    def meet(self, tracked: TrackedLoader) -> None:
        """Nothing is kept of loaders that are evaluated on."""

    def _iterate(self, loader: TrackedLoader, plain: Callable[[], Iterator[Any]]) -> Iterator[Any]:
        if not self.is_running:
            return plain()
        if loader is not self.train or not self._is_in_epoch:
            return _Evaluation(self, loader, plain)
        return _Training(self, loader, plain)

    def begin_evaluation(self, loader: TrackedLoader) -> None:
        """The first batch of a pass that nothing is trained on is about to be asked for."""
        loader.begin_validation(self.counts.batch, self.num_evaluations)
        self.num_evaluations += 1

    # ---- what the loop says

    def begin_pass(self, epoch: int) -> None:
        """An epoch begins, or goes on."""
        assert self.train is not None
        if self._destination is None:
            self.one.over = True
            self.train.leave_epoch()
            self.counts.epoch_batch = 0
        self.counts.epoch, self._is_in_epoch = epoch, True
        self.one = Pass(iterator=lambda: self)
        self.train.bind(self.one)
        self.one.trained = self.train.trains = True

    def reach(self, kind: str, *, is_last: bool = False, saves: bool = True) -> None:
        """A boundary; nothing on the way to the one that the run goes on from.

        Args:
            kind: of the boundary.
            is_last: whether nothing is trained after it.
            saves: whether the run itself may be saved there, beside what the Trainer has just written.
        """
        if self._destination is None:
            self._here = Place(kind)
            self.settle_folder()
            if saves:
                self.boundary(ends_epoch=kind == BETWEEN, is_last=is_last)

    def pass_over(self, epoch: int, num_batches: int, num_ranks: int) -> None:
        """The first pass goes on behind so many batches, which were used elsewhere."""
        assert self.train is not None
        self.counts.epoch, self.counts.epoch_batch = epoch, num_batches
        self.train.pass_over(epoch, num_batches, num_ranks)
        self.redirect(AT_FETCH)

    def end_pass(self) -> None:
        """All of an epoch is done."""
        self._is_in_epoch = False

    def count_batch(self) -> None:
        """A batch was trained on."""
        self.counts.batch += 1
        self.counts.epoch_batch += 1
        self.one.num_batches += 1
        self.num_evaluations = 0

    def trained(self) -> None:
        """The loop says so itself."""

    # ---- state

    def capture(self, num_ranks: int, *, is_first: bool) -> dict[str, Any]:
        """Where the run stands, as plain values."""
        return super().capture(num_ranks, is_first=is_first) | {"evaluations": self.num_evaluations}

    def apply(self, saved: Mapping[str, Any]) -> None:
        """Go on where `capture` saw the run."""
        super().apply(saved)
        self.num_evaluations = saved["evaluations"]

    @property
    def destination(self) -> str | None:
        """What kind of boundary the run goes on from, until it does."""
        return None if self._destination is None else self._destination.kind

    def samples(self, num_ranks: int) -> list[dict[str, Any]]:
        """Which samples the last batch had; the Trainer takes those of a whole window at once."""
        if self.train is None:
            return []
        return [self.train.samples(self.one, self.counts.epoch_batch, num_ranks)]

    def redirect(self, kind: str) -> None:
        """A limit has changed since: another boundary is the one to go on from."""
        self._here = self._destination = Place(kind)
