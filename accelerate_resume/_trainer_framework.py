"""A run of the Hugging Face Trainer as a `resume_core.framework.Framework`.

A Trainer has an Accelerator inside, so most of it is that of `AcceleratorFramework`. What differs is how the run is
followed: an Accelerate script is watched from outside, while the Trainer's own loop says where it is. Boundaries are:

- before the batches of an accumulation window are taken, all hooks of the step before having run;
- between two batches of a window;
- when an epoch has no more batches, before the hooks at its end;
- when an epoch is over, those hooks and what they asked for (logging, evaluation, saving) included.

Whatever else is gone over while the run lasts is evaluation: what it draws is a function of how many batches were
trained on, and of how many evaluations there were since the last of them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import torch
from transformers.trainer_callback import ExportableState, TrainerCallback

from accelerate_resume._folders import capture_left_out
from accelerate_resume._framework import AcceleratorFramework
from accelerate_resume._hf_info import TrainerInfo
from accelerate_resume._hf_trainer import Calls, HfTrainer
from accelerate_resume._notes import OF_ACCELERATE
from accelerate_resume._passes import Pass, TrackedLoader
from accelerate_resume._place import AT_END, AT_FETCH, BETWEEN, Place
from accelerate_resume._rests import EPOCH_END, EVALUATION
from accelerate_resume._tracker import Tracker
from resume_core.capture.attributes import AttributeWatch, changed_note
from resume_core.capture.describe import describe_schedulers
from resume_core.capture.generators import GENERATORS, find_generators
from resume_core.capture.plain import plain as as_plain
from resume_core.errors import ResumeError
from resume_core.state import Ahead, Fact, Progress, State

__all__ = ["TrainerFramework"]

_ADVICE = (
    "keep them in a buffer of the model, or in the state() of a callback that is an ExportableState of "
    "transformers.trainer_callback"
)
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
        boundary: called at each, with whether it is the end of an epoch and nothing is trained after it.
        arrive: called when the moment is there that the run goes on from.
    """

    def __init__(self, boundary: Callable[[bool, bool], None], arrive: Callable[[], None]) -> None:
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
                self.boundary(kind == BETWEEN, is_last)

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


class TrainerFramework(AcceleratorFramework):
    """One call of ``train``.

    Args:
        hf: the Trainer.
        boundary: called at each, with where the run stands, and which kinds of rest come before the next.
        tell: told what a resume would lose.
    """

    def __init__(self, hf: HfTrainer, boundary: Callable[[Progress, Ahead], None], tell: Callable[[str], None]) -> None:
        super().__init__(hf.trainer.accelerator, boundary)
        self.hf, self._tell = hf, tell
        self._info = TrainerInfo(hf.trainer)
        self.loop = self.tracker = TrainerTracker(self._reach, self._arrive)
        hf.num_batches = lambda: self.loop.counts.batch
        self._trainer_late: tuple[Mapping[str, Any], Mapping[str, Any]] | None = None
        self._attributes: AttributeWatch | None = None
        self._metrics: dict[str, float] = {}
        self._num_logs = 0
        self.result: Any = None
        """What ``train`` has returned, once it has."""

    def calls(
        self, open_: Callable[[], str | None], start: Callable[[], int], before_checkpoint: Callable[[str], None]
    ) -> Calls:
        """What the Trainer's loop tells; see `Calls`."""
        loop = self.loop
        return Calls(
            open=open_,
            start=start,
            enter_epoch=loop.begin_pass,
            leave_epoch=self._leave_epoch,
            before_window=lambda: loop.reach(AT_FETCH),
            stranded=self._strand,
            before_batch=lambda: loop.reach(AT_FETCH),
            given=lambda inputs: self.observer.batch(inputs),
            after_batch=loop.count_batch,
            is_through=loop.arrive_now,
            evaluation=lambda: self.rests.pause(EVALUATION),
            before_checkpoint=before_checkpoint,
        )

    # ---- boundaries

    @property
    def progress(self) -> Progress:
        """Where the run stands."""
        counts = self.loop.counts
        counts.step = int(self.hf.trainer.state.global_step)
        return counts.progress(in_window=self.hf.in_window, is_last=self._is_last, ends_epoch=self._ends_epoch)

    def begin_epoch(self) -> None:
        """Before the hooks of that name: where a run goes on that was saved between two epochs."""
        if self.loop.destination == BETWEEN:
            self.loop.arrive_now()

    def end_epoch(self) -> None:
        """Before the hooks of that name."""
        self.loop.arrive_now()
        self.loop.reach(AT_END, is_last=self._is_cut)

    def _ahead(self) -> Collection[str]:
        if self.loop.is_behind_loop:
            return (EPOCH_END, EVALUATION) if self.hf.evaluates_epochs else (EPOCH_END,)
        return (EVALUATION,) if not self.loop.is_between and self.hf.evaluates_next else ()

    @property
    def _is_cut(self) -> bool:
        """Whether training ends inside the epoch: what may go on there does so before the hooks of its end."""
        return self.hf.is_stopped and self.loop.counts.epoch_batch < self.hf.steps_in_epoch

    def _leave_epoch(self) -> None:
        for note in self.notes():
            self._tell(note)
        is_cut = self._is_cut
        self.loop.end_pass()
        is_last = self.hf.is_stopped or self.loop.counts.epoch + 1 >= self.hf.num_epochs
        self.loop.reach(BETWEEN, is_last=is_last, saves=not is_cut)

    def first_epoch(self) -> int:
        """The epoch in which the loop is to begin; the number of epochs when nothing of it is left."""
        hf, loop = self.hf, self.loop
        if self._trainer_late is None:
            return self._first_foreign() if hf.foreign else 0
        training, rank = self._trainer_late
        counts, kind, stops = loop.counts, loop.destination, hf.stops(training)
        if kind == BETWEEN:
            return hf.num_epochs if stops else counts.epoch + 1
        if kind == AT_END and not stops and counts.epoch_batch < hf.steps_in_epoch and training["is_cut"]:
            loop.redirect(AT_FETCH)  # the epoch ended there only because training did
        elif kind == AT_FETCH and stops:
            loop.redirect(AT_END)
        hf.go_on_at(counts.epoch_batch, rank, is_at_end=loop.destination == AT_END)
        return counts.epoch

    def _first_foreign(self) -> int:
        """Behind a folder that the Trainer alone has written: positions are all that is known."""
        hf, loop = self.hf, self.loop
        epoch, num_batches = hf.foreign_place
        loop.counts.batch = epoch * hf.steps_in_epoch + num_batches
        if num_batches:
            loop.pass_over(epoch, num_batches, self.ranks.size)
            hf.go_on_at(num_batches, {"window": None}, is_at_end=False)
        return epoch

    # ---- Framework

    def begin(self) -> list[str]:
        """Training is about to begin, or to go on: see `AcceleratorFramework.begin`."""
        hooks = self.hf.own_callbacks.items()
        owners = {name: owner for name, owner in hooks if not isinstance(owner, ExportableState)}
        owners |= {**self.modules, "trainer": self.hf.trainer}
        kinds = (torch.utils.data.Dataset, TrainerCallback)
        self._attributes = AttributeWatch(owners, self.hf.attributes | OF_ACCELERATE, kinds)
        notes = super().begin()
        if any(loader.is_uneven for loader in self.loaders):
            raise ResumeError(
                "ranks get different numbers of batches, so they would not reach the same boundaries: leave "
                "even_batches in accelerator_config as it is"
            )
        return notes

    def begin_export(self) -> list[str]:
        """Make what checkpoints carry for exports alone; gives what they do not, one sentence each."""
        return self._info.make_extras() if self.ranks.is_first else []

    def _holders(self) -> list[Any]:
        return [*super()._holders(), self.hf.trainer.lr_scheduler]

    def notes(self) -> list[str]:
        """What an epoch that has run showed to be lost by a resume, one sentence each; each is told once."""
        names = [] if self._attributes is None else self._attributes.changed()
        return [changed_note(names, _ADVICE)] if names else []

    def _generators(self) -> tuple[Any, ...]:
        own = [vars(callback) for callback in self.hf.own_callbacks.values()]  # not what they refer to: a Trainer, say
        held = [value for attributes in own for value in attributes.values() if isinstance(value, GENERATORS)]
        return (*super()._generators(), *find_generators(held))

    def _prepare_loader(self, plain: Callable[..., Any], loader: Any, *args: Any, **kwargs: Any) -> Any:
        if self.loop.train is None:
            return super()._prepare_loader(plain, loader, *args, **kwargs)
        prepared = plain(loader, *args, **kwargs)
        self._track(prepared, 0)
        return prepared

    def know_train_loader(self) -> None:
        """All loaders that come from now on are for evaluation."""
        loader = self.hf.train_loader
        self.loop.train = next(known for known in self.loaders if known.prepared.loader is loader)

    @property
    def metrics(self) -> Mapping[str, float]:
        """What was logged last of each name."""
        history = self.hf.trainer.state.log_history
        for entry in history[self._num_logs :]:
            found = {name: float(value) for name, value in entry.items() if isinstance(value, (int, float))}
            self._metrics |= {name: value for name, value in found.items() if name not in ("step", "epoch")}
        self._num_logs = len(history)
        return self._metrics

    def describe(self) -> dict[str, Fact]:
        """What an Accelerator's run has, the Trainer's scheduler and its arguments."""
        facts = super().describe() | {name: Fact(as_plain(value)) for name, value in self.hf.arguments.items()}
        return facts | describe_schedulers([self.hf.trainer.lr_scheduler])

    def parts(self, state: State | None) -> dict[str, Any]:
        """See `AcceleratorFramework.parts`."""
        found, hf = super().parts(state), self.hf
        scheduler = hf.trainer.lr_scheduler.state_dict() if state is None else state.training["trainer"]["scheduler"]
        return {**found, "schedulers": [*found["schedulers"], scheduler]}

    def capture(self) -> State:
        """The state at a boundary: live references."""
        state = super().capture()
        training = {**state.training, "trainer": self.hf.capture_training(), "result": self.result}
        rank = {**state.rank, "trainer": self.hf.capture_rank()}
        info = {**state.info, **self._info.capture()}
        return State(model=state.model, training=training, rank=rank, info=info, extras=self._info.extras)

    def apply(self, state: State) -> None:
        """Put the state into the live objects now; what hooks may still change, once more on arrival."""
        super().apply(state)
        self.result = state.training["result"]
        self._trainer_late = state.training["trainer"], state.rank["trainer"]
        self.hf.apply(*self._trainer_late)

    def pieces(self, rng: dict[str, Any]) -> dict[str, dict[str, Any]]:
        """What a folder of the Trainer's own leaves out: live references."""
        left_out = capture_left_out(self.accelerated, is_first=self.ranks.is_first)
        training = {**self._capture_own(), "left_out": left_out, "trainer": self.hf.capture_training(), "result": None}
        rank = {**self._capture_rank(rng, self.loop.capture), "trainer": self.hf.capture_rank()}
        return {"training": training, "rank": rank}

    def _arrive(self) -> None:
        if self._trainer_late is not None:
            self.hf.arrive(*self._trainer_late, between=self.loop.is_between)
            self._trainer_late = None
            super()._arrive()
        if self.loop.is_running:
            self._boundary(self.progress, tuple)
