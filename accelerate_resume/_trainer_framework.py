"""A run of the Hugging Face Trainer as a `resume_core.framework.Framework`.

A Trainer has an Accelerator inside, so most of it is that of `AcceleratorFramework`. What differs is how the run is
followed, see ``_trainer_tracker``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from transformers.trainer_callback import ExportableState, TrainerCallback

from accelerate_resume._folders import capture_left_out
from accelerate_resume._framework import AcceleratorFramework
from accelerate_resume._hf_info import TrainerInfo
from accelerate_resume._hf_trainer import Calls, HfTrainer
from accelerate_resume._notes import OF_ACCELERATE, Advice
from accelerate_resume._pauses import EPOCH_END, EVALUATION
from accelerate_resume._place import AT_END, AT_FETCH, BETWEEN
from accelerate_resume._trainer_tracker import TrainerTracker
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


class TrainerFramework(AcceleratorFramework):
    """One call of ``train``.

    Args:
        hf: the Trainer.
        boundary: called at each, with where the run stands, and which kinds of pause come before the next.
        tell: told what a resume would lose.
    """

    _advice = Advice(
        generators="keep each as an attribute of the model, or of a callback",
        data="keep them in the state() of a callback that is an ExportableState of transformers.trainer_callback, and "
        "set them in its on_epoch_begin",
    )

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
            evaluation=lambda: self.pauses.pause(EVALUATION),
            before_checkpoint=before_checkpoint,
        )

    @property
    def num_loss_parts(self) -> int:
        """The Trainer divides its losses by the batches of the window, or by the items in them."""
        return self.hf.window.size

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
        return [*([changed_note(names, _ADVICE)] if names else []), *self._notes.of_data()]

    def _looked_into(self) -> Collection[int]:
        return () if self._attributes is None else self._attributes.looked_into

    def _keepers(self) -> list[Any]:
        return [*super()._keepers(), *self.hf.own_callbacks.values()]

    def _generators(self) -> tuple[Any, ...]:
        own = [vars(callback) for callback in self.hf.own_callbacks.values()]  # not what they refer to: a Trainer, say
        held = [value for attributes in own for value in attributes.values() if isinstance(value, GENERATORS)]
        return (*super()._generators(), *find_generators(held))

    def _training_code(self) -> list[tuple[str, Any]]:
        trainer = self.hf.trainer
        own = {**self.hf.own_callbacks, "trainer": trainer, "compute_loss_func": trainer.compute_loss_func}
        return list(own.items())

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
