"""Lightning's own checkpoints, made complete: what to add to one that is being written, and how to go on from it.

Lightning is led to the start of the epoch loop by counters that say "in the middle of this epoch", whatever the point
of the save was: that is the one place that a resume is known to be exact from. There the true counters are put in place
with everything else, and `Rest` does what Lightning still had to do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Protocol

from lightning_resume._callbacks import Shadow
from lightning_resume._package import package_of
from lightning_resume._place import Place, find_place, is_at_boundary
from lightning_resume._rest import END, Rest, capture_point
from resume_core.capture.rng import capture_rng, preserved_rng
from resume_core.state import Progress, State

__all__ = ["Embedding", "Snapshot", "state_of"]

Snapshot = tuple[Progress, Mapping[str, Any], Mapping[str, Any]]
"""Progress, point and pieces of an `resume_core.entry.Entry`."""

_BOUNDARY: Mapping[str, Any] = {"hook": None}
_AT_END: Mapping[str, Any] = {"hook": END}


class Host(Protocol):
    """What is needed of a `FitFramework`."""

    trainer: Any

    @property
    def model_checkpoints(self) -> list[Any]:
        """All of the Trainer's, in their order."""
        ...

    def files_with(self, place: int, path: str) -> list[str] | None:
        """Files of one of them, with the one that is being written."""
        ...

    def pieces(self, num_batches: int, rng: dict[str, Any] | None = None) -> dict[str, dict[str, Any]]:
        """What a checkpoint of Lightning's own lacks."""
        ...

    def progress(self) -> Progress:
        """Where training stands."""
        ...


def state_of(checkpoint: Mapping[str, Any], point: Mapping[str, Any], pieces: Mapping[str, Any]) -> State:
    """A checkpoint of Lightning's with the pieces that it lacks, as a state that `FitFramework.apply` takes."""
    training = {**pieces["training"], "checkpoint": checkpoint, "point": point}
    return State(model=checkpoint["state_dict"], training=training, rank=pieces["rank"])


class Embedding:
    """The part of a `FitFramework` that deals with checkpoints taken inside hooks.

    Args:
        host: captures and applies.
        carries: whether what Lightning saves is made complete; otherwise nothing is noted for it.
    """

    def __init__(self, host: Host, *, carries: bool) -> None:
        self._host, self._trainer, self._carries = host, host.trainer, carries
        self._fit = host.trainer.fit_loop
        self._before_validation: Mapping[str, Any] = {}
        self._rng: dict[str, Any] | None = None
        self.rest: Rest | None = None
        """What the save that the run goes on from had interrupted, until it is done."""
        self.ended: Snapshot | str | None = None
        """What is saved from now on, when training is over: a snapshot of its end, or why there is none."""

    def install(self, shadow: Shadow) -> None:
        """Shadow what saving and going on inside hooks needs."""
        shadow(self._trainer._checkpoint_connector, "dump_checkpoint", self._dump)
        shadow(self._fit, "on_advance_end", self._epoch_end)
        if self._carries:
            shadow(self._fit.epoch_loop.val_loop, "run", self._validate)
            shadow(self._fit, "on_run_end", self._run_end)

    # ---- saving

    def _dump(self, plain: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self._rng = capture_rng() if self._carries else None
        try:
            with preserved_rng():  # what hooks of the save draw must not move training
                return plain(*args, **kwargs)
        finally:
            self._rng = None

    def _validate(self, plain: Callable[[], Any]) -> Any:
        first = self._trainer._logger_connector._first_loop_iter
        self._before_validation = {"rng": capture_rng(), "first_loop_iter": first}
        return plain()

    def _run_end(self, plain: Callable[[], None]) -> None:
        self.ended = self._snapshot(_AT_END)
        plain()

    def interrupted(self, error: BaseException) -> None:
        """Training ends with an error: what is saved from now on is exact only if Lightning raised it in between."""
        if not self._carries:
            return
        if is_at_boundary(error, type(self._fit.epoch_loop).on_advance_end):
            self.ended = self._snapshot(_BOUNDARY)
        elif is_at_boundary(error, type(self._fit).on_advance_end):
            self.ended = self._snapshot(_AT_END)
        elif not isinstance(self.ended, tuple):
            self.ended = f"after {type(error).__name__}"

    def snapshot(self) -> Snapshot | str:
        """What the checkpoint that is being written lacks; a text says where it is taken when nothing can be exact."""
        if self.ended is not None:
            return self.ended
        place = find_place(self._trainer)
        if isinstance(place, str):
            return place
        return self._snapshot(capture_point(self._trainer, place, self._before_validation), place)

    def _snapshot(self, point: Mapping[str, Any], place: Place | None = None) -> Snapshot:
        batches = self._fit.epoch_loop.batch_progress
        num_done = int(batches.current.processed)  # in hooks of a batch it is not yet counted as completed
        pieces = self._host.pieces(num_done, self._rng)
        if place is not None and place.saver is not None:
            outputs, at = pieces["rank"]["outputs"], self._host.model_checkpoints.index(place.saver)
            outputs["model_checkpoints"][at]["fields"].update(_after_saving(self._trainer, place, point))
            outputs["files"][at] = self._host.files_with(at, place.path)
        progress = replace(self._host.progress(), batch=int(batches.total.processed), epoch_batch=num_done)
        return progress, point, pieces

    # ---- going on

    def expect(self, point: Mapping[str, Any], state: State) -> None:
        """The state that was applied was taken at ``point``."""
        self.rest = Rest(self._trainer, point, state.rank["rng"])

    def lead(self, state: State) -> bool:
        """Lightning has restored its counters: bring it to the start of the epoch loop.

        Returns:
            False when nothing is left to train.
        """
        assert self.rest is not None
        if self.rest.is_end and self._is_over(should_stop=state.training["trainer"]["should_stop"]):
            pieces = {"training": {"trainer": state.training["trainer"]}, "rank": state.rank}
            self.ended, self.rest = (self._host.progress(), _AT_END, pieces), None
            return False
        epochs, batches = self._fit.epoch_progress, self._fit.epoch_loop.batch_progress
        for count in (epochs.total, epochs.current):
            count.started = count.ready
            count.processed = count.completed = count.ready - 1
        for count in (batches.total, batches.current):
            count.started = count.processed = count.completed = count.ready
        package_of(self._trainer)._Loop.restarting.fset(self._fit, True)
        return True

    def _is_over(self, *, should_stop: bool) -> bool:
        fit, trainer = self._fit, self._trainer
        trainer.should_stop = should_stop
        epochs, steps = fit.epoch_progress.current.processed, trainer.global_step
        return bool(
            -1 < fit.max_epochs <= epochs or -1 < fit.max_steps <= steps or (should_stop and fit._can_stop_early)
        )

    def place_counters(self, state: State) -> None:
        """The true counters, at the start of the epoch loop."""
        self._fit.load_state_dict(state.training["checkpoint"]["loops"]["fit_loop"])
        self._fit._combined_loader_states_to_load = []  # loaded when the loaders were set up

    def reopen_epoch(self) -> str | None:
        """An epoch that had ended only because training did goes on when training may go on.

        Returns:
            What is not exact then, None when all is well.
        """
        rest, epochs = self.rest, self._fit.epoch_progress
        if rest is None or not rest.is_after_epoch or self._fit.epoch_loop.done:
            return None
        for count in (epochs.total, epochs.current):
            count.processed = count.completed = count.ready - 1
        self.rest = None
        return (
            f"training had ended within epoch {epochs.current.completed}, and now goes on in it: hooks of its end have "
            "run once already" + (", and its averages cover the rest of it" if rest.is_end else "")
        )

    def after_batch(self, fetcher: Any) -> bool:
        """Do the rest up to the end of the batch; False when no batch follows in this epoch."""
        rest = self.rest
        if rest is None:
            return True
        self._before_validation = rest.before_validation
        rest.after_batch(fetcher)
        if rest.is_after_epoch:
            return False
        self.rest = None
        return True

    def _epoch_end(self, plain: Callable[[], None]) -> None:
        rest, self.rest = self.rest, None
        if rest is None:
            plain()
        else:
            rest.after_epoch()


def _after_saving(trainer: Any, place: Place, point: Mapping[str, Any]) -> dict[str, Any]:
    """What a `ModelCheckpoint` is going to note when the file is written."""
    fields = {"_last_global_step_saved": trainer.global_step, "_last_checkpoint_saved": place.path}
    if place.hook == "on_validation_end":
        fields["_defer_save_until_validation"] = False
    if "last" in point:
        fields["last_model_path"] = point["last"]  # the name it will have: it does not go on to "last-v1"
    return fields
