"""A Trainer's fit as a `resume_core.framework.Framework`: what is captured and applied, and when.

Each kind of state has a module of its own beside this one (``_data``, ``_loops``, ``_results``, ``_averaging``,
``_outputs``, ``_tuners``, ``_ddp``, ``_embedding``, ``_weights``), which lists the internals that it uses.

What a checkpoint holds is applied in three parts, as Lightning's objects come to be: modules and callbacks as soon as
it is read (`FitFramework.apply`); loops and optimizers when Lightning loads them (`FitFramework.load`); and at the
first fetch what the hooks in between clear, the random generators last (`FitFramework.arrive` and what follows it).

Internals used (Lightning 2.6): ``trainer.fit_loop`` with its ``epoch_loop`` and ``val_loop``,
``trainer._checkpoint_connector``, ``trainer._logger_connector`` and ``trainer.strategy``.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch

from lightning_resume._averaging import WEIGHTS_BESIDE_THE_AVERAGE, apply_averaging, capture_averaging
from lightning_resume._callbacks import model_checkpoints
from lightning_resume._data import Data
from lightning_resume._ddp import bucket_layout, ranks_of
from lightning_resume._description import describe
from lightning_resume._embedding import Embedding, state_of
from lightning_resume._ending import is_last, limits
from lightning_resume._info import recorded_info
from lightning_resume._loops import apply_marks, capture_marks, hyper_parameters
from lightning_resume._outputs import Outputs
from lightning_resume._package import package_of
from lightning_resume._results import apply_results, capture_results
from lightning_resume._tuners import Findings
from lightning_resume._weights import live_weights
from resume_core.capture.generators import apply_generators, capture_generators, find_generators
from resume_core.capture.gradients import apply_gradients, capture_gradients
from resume_core.capture.modules import apply_modules, capture_modules, refilled
from resume_core.capture.optimizer import place_optimizer_state
from resume_core.capture.param_groups import apply_groups, capture_groups, group_sizes
from resume_core.capture.rng import apply_rng, capture_rng
from resume_core.capture.weights import refuse_new_shapes, shapes, size_bytes, versioned
from resume_core.state import Fact, Progress, State, Vitals

__all__ = ["FitFramework"]

_FRAMEWORKS = ("lightning.", "pytorch_lightning.", "lightning_resume.")


class FitFramework:
    """One ``fit`` of a `Trainer`.

    Args:
        trainer: in its ``setup`` hook.
        seed: the fact that `seed_fact` gave when ``fit`` began, before anything here could touch a generator.
        findings: what the finders of the run have found.
        goes_on: whether training goes on even from a checkpoint at which something had asked for its end.
        carries: whether what Lightning itself saves is made complete.
    """

    def __init__(self, trainer: Any, seed: Fact, findings: Findings, *, goes_on: bool, carries: bool) -> None:
        self.trainer = trainer
        self._package = package_of(trainer)
        self._seed, self._findings, self._goes_on = seed, findings, goes_on
        self._fit, self._epoch = trainer.fit_loop, trainer.fit_loop.epoch_loop
        self._restored: State | None = None  # applied in part
        self._arrived: State | None = None  # applied, but for what comes last
        self._max_steps: int | None = None
        self._generators: tuple[Any, ...] | None = None  # searched once a fit
        self._shapes: dict[str, Any] = {}
        self._groups: list[list[int]] = []
        self._buckets = bucket_layout(trainer.strategy)
        self.ranks = ranks_of(trainer.strategy)
        self.data = Data(trainer, self.ranks)
        self.outputs = Outputs(trainer)
        self.embedding = Embedding(self, carries=carries)

    def release(self) -> None:
        """Give the loaders and the model back as they were, and open the logs."""
        self._buckets.release()
        self.outputs.put_back()
        self.data.release()

    # ---- Framework

    @property
    def limits(self) -> Mapping[str, float]:
        """``max_epochs``, ``max_steps`` and ``max_time`` (in seconds), those of them that are set."""
        return limits(self.trainer)

    @property
    def owners(self) -> dict[str, Any]:
        """The objects of the user's that may keep something from one batch to the next, by name."""
        callbacks = [c for c in self.trainer.callbacks if not type(c).__module__.startswith(_FRAMEWORKS)]
        named = {f"{type(callback).__name__}.{place}": callback for place, callback in enumerate(callbacks)}
        module, data = self.trainer.lightning_module, self.trainer.datamodule
        return {"module": module} | ({} if data is None else {"datamodule": data}) | named

    @property
    def weights_bytes(self) -> int:
        """Size of what the module's ``state_dict`` holds."""
        return size_bytes(self.trainer.strategy.lightning_module_state_dict())

    @property
    def train_loaders(self) -> list[Any]:
        """What ``fit`` was given, or its hook returned, flattened; known after `prepare`."""
        return self.data.flattened

    @property
    def metrics(self) -> dict[str, float]:
        """``trainer.callback_metrics``, those that are one number, as Lightning has last computed them."""
        found = self.trainer._logger_connector._callback_metrics  # the property computes, and may meet other ranks
        return {str(name): float(value) for name, value in found.items() if value.numel() == 1}

    def prepare(self, key: int) -> None:
        """Ask for the train loaders, once."""
        self.data.ask(key)

    def preamble(self) -> dict[str, Any]:
        """Where the run logs, and what its finders have found."""
        return {**self.outputs.preamble(), "findings": self._findings.found}

    def describe(self) -> dict[str, Fact]:
        """Seed, loaders, optimizers, schedulers, model and Trainer arguments; see `resume_core.capture.describe`."""
        weights = self.trainer.strategy.lightning_module_state_dict()
        self._shapes, self._groups = shapes(weights), group_sizes(self.trainer.optimizers)
        facts = describe(self.trainer, self.train_loaders, weights)
        return {"seed": self._seed, "world_size": Fact(self.ranks.size), **facts}

    def progress(self, *, at_boundary: bool = False) -> Progress:
        """Where training stands, read from the loops' counters; whether it ends there is known at a boundary."""
        epoch_loop = self._epoch
        batches, step = epoch_loop.batch_progress, self.trainer.global_step
        ends_epoch = bool(epoch_loop._num_ready_batches_reached())
        return Progress(
            step=int(step),
            batch=int(batches.total.completed),
            epoch=max(int(self._fit.epoch_progress.current.ready) - 1, 0),  # at a fit's end as well
            epoch_batch=int(batches.current.completed),
            in_window=bool(epoch_loop._should_accumulate()) and not self._fit._skip_backward,
            is_last=at_boundary and is_last(self.trainer, step, ends_epoch=ends_epoch),
            ends_epoch=ends_epoch,
        )

    def capture(self) -> State:
        """Lightning's own checkpoint, and beside it what that lacks."""
        rng = capture_rng()
        checkpoint = self.trainer._checkpoint_connector.dump_checkpoint(False)  # keeps what its hooks draw apart
        model = checkpoint.pop("state_dict")
        refuse_new_shapes(self._shapes, model)
        info = recorded_info(checkpoint, model)
        pieces = self.pieces(int(self._epoch.batch_progress.current.completed), rng, logs=True)
        training = {"checkpoint": checkpoint, **pieces["training"]}
        return State(model=model, training=training, rank=pieces["rank"], info=info)

    def pieces(
        self, num_batches: int, rng: dict[str, Any] | None = None, *, logs: bool = False
    ) -> dict[str, dict[str, Any]]:
        """What a checkpoint of Lightning's own lacks, by the part of a `State` that it belongs to.

        Args:
            num_batches: of the epoch, trained on.
            rng: the global generators, captured earlier; as they are now unless given.
            logs: with what the loggers have written.
        """
        rank = {
            "rng": capture_rng() if rng is None else rng,
            "loaders": self.data.train.state(num_batches),
            "results": capture_results(self._epoch._results),
            "modules": capture_modules(self.trainer.lightning_module),
            "averaging": capture_averaging(self.trainer),
            "gradients": self._open_gradients(),
            "generators": capture_generators(self._generators or ()),
            "outputs": self.outputs.capture(logs=logs),
        }
        training = {"trainer": capture_marks(self.trainer), "buckets": self._buckets.state()}
        training["groups"] = capture_groups(self.trainer.optimizers, self._parameters, self._groups)
        return {"training": training, "rank": rank}

    def parts(self, state: State | None) -> dict[str, Any]:
        """Weights, and the state of optimizers, schedulers and loss scaling: saved, or live where ``state`` is None."""
        strategy, precision = self.trainer.strategy, self.trainer.strategy.precision_plugin
        if state is None:
            return {
                "weights": strategy.lightning_module_state_dict(),
                "optimizers": [strategy.optimizer_state(optimizer) for optimizer in self.trainer.optimizers],
                "schedulers": [config.scheduler.state_dict() for config in self.trainer.lr_scheduler_configs],
                "scaler": precision.state_dict(),
            }
        checkpoint = state.training["checkpoint"]
        return {
            "weights": checkpoint.get(WEIGHTS_BESIDE_THE_AVERAGE, state.model),
            "optimizers": checkpoint.get("optimizer_states", []),
            "schedulers": checkpoint.get("lr_schedulers", []),
            "scaler": checkpoint.get(type(precision).__qualname__, {}),
        }

    def vitals(self) -> Vitals:
        """Parameters, optimizers, the scale of the loss, and where the loaders stand."""
        scaler, num_batches = self.scaler, int(self._epoch.batch_progress.current.completed)
        return Vitals(
            parameters=self._parameters,
            optimizers=self.trainer.optimizers,
            scale=None if scaler is None else float(scaler.get_scale()),
            samples=self.data.train.samples(num_batches),
            is_between=bool(self._epoch._num_ready_batches_reached()),
        )

    @property
    def scaler(self) -> Any:
        """Of the loss, None where it is not scaled."""
        return getattr(self.trainer.strategy.precision_plugin, "scaler", None)

    def live_weights(self) -> dict[str, torch.Tensor]:
        """Parameters and buffers that nothing but `apply` would load; see `_weights`."""
        return live_weights(self.trainer)

    def apply(self, state: State) -> None:
        """Load modules and callbacks now; Lightning loads loops and optimizers next; the rest at the first fetch."""
        self._restored, module = state, self.trainer.lightning_module
        connector, checkpoint = self.trainer._checkpoint_connector, dict(state.training["checkpoint"])
        if WEIGHTS_BESIDE_THE_AVERAGE in checkpoint:
            checkpoint[WEIGHTS_BESIDE_THE_AVERAGE] = versioned(
                self.trainer.lightning_module, checkpoint[WEIGHTS_BESIDE_THE_AVERAGE]
            )
        connector._loaded_checkpoint = {
            **hyper_parameters(self.trainer),  # for hooks that read them; those of this run, as nothing else changed
            "state_dict": versioned(module, state.model),
            **checkpoint,
        }
        with refilled([module]):
            connector.restore_model()
        connector.restore_datamodule()
        connector.restore_callbacks()
        self.outputs.apply(state.rank["outputs"])
        reloads = bool(self.trainer.reload_dataloaders_every_n_epochs)
        self.data.seek(state.rank["loaders"], state.training["trainer"], reloads=reloads)
        if (point := state.training.get("point")) is not None:
            self.embedding.expect(point, state)
        rest, step = self.embedding.rest, state.training["checkpoint"]["global_step"]
        if (rest is None or not rest.is_end) and self._epoch.max_steps != -1 and step >= self._epoch.max_steps:
            # FitLoop.skip would end the run before the hooks at this epoch's end; put back when the epoch loop runs
            self._max_steps, self._epoch.max_steps = self._epoch.max_steps, step + 1

    def state_of(self, point: Mapping[str, Any], pieces: Mapping[str, Any]) -> State:
        """What Lightning has read, with what it lacks; Lightning itself applies nothing of it."""
        connector = self.trainer._checkpoint_connector
        checkpoint, connector._loaded_checkpoint = connector._loaded_checkpoint, {}
        return state_of(checkpoint, point, pieces)

    @property
    def model_checkpoints(self) -> list[Any]:
        """All of the Trainer's, in their order."""
        return model_checkpoints(self.trainer.callbacks)

    def files_with(self, place: int, path: str) -> list[str] | None:
        """The files of one of `model_checkpoints`, with the one that is being written."""
        return self.outputs.files_with(place, path)

    @property
    def _parameters(self) -> dict[str, torch.nn.Parameter]:
        return dict(self.trainer.lightning_module.named_parameters())

    def _open_gradients(self) -> dict[str, torch.Tensor] | None:
        """Gradients that something may still read; None when Lightning clears them before the next backward."""
        module = self.trainer.lightning_module
        looks = any(
            self._package.is_overridden(hook, module) for hook in ("optimizer_zero_grad", "on_before_zero_grad")
        )
        if module.automatic_optimization and not self._epoch._should_accumulate() and not looks:
            return None
        return capture_gradients(self._parameters)

    # ---- what `apply` leaves for later

    @property
    def is_restoring(self) -> bool:
        """Whether a state was applied of which the rest is still to come."""
        return self._restored is not None

    def load(self, plain: Callable[[], None]) -> bool:
        """Around ``restore_training_state``: loops, optimizers and schedulers.

        Returns:
            False when nothing is left to train.
        """
        restored = self._restored
        if restored is None:
            plain()
            return True
        # behind on_fit_start, where callbacks make groups of their own anew
        apply_groups(self.trainer.optimizers, self._parameters, restored.training.get("groups", {}))
        plain()
        saved = restored.training["checkpoint"].get("optimizer_states", ())
        for optimizer, state in zip(self.trainer.optimizers, saved, strict=False):
            place_optimizer_state(optimizer, state)
        return self.embedding.rest is None or self.embedding.lead(restored)

    def lay_out_buckets(self) -> None:
        """The model is wrapped: let its buckets lie as they did, and note how they lie from now on."""
        if self._restored is not None:
            self._buckets.apply(self._restored.training.get("buckets"))
        self._buckets.watch()

    def find_generators(self) -> tuple[Any, ...]:
        """The random generators that the user's objects hold."""
        if self._generators is None:
            self._generators = find_generators(list(self.owners.values()), closed=self.no_owners)
        return self._generators

    @property
    def no_owners(self) -> tuple[object, ...]:
        """What the user's objects refer to and do not own.

        The Trainer is reached from everywhere (by the hooks that are shadowed on the module, for one) and holds other
        objects in each attempt.
        """
        return self.trainer, self.trainer.lightning_module._fabric

    def arrive(self, *, trains: bool) -> None:
        """What Lightning neither saves nor restores, at the last moment before the first batch.

        Args:
            trains: whether there is one; else the run had come to its end.
        """
        self._arrived, self._restored = self._restored, None
        if self._arrived is not None:
            self._mend(self._arrived, trains=trains)

    def put_back_last(self) -> bool:
        """Logs and random generators, when nothing comes before the first batch any more; False for a new run."""
        state, self._arrived = self._arrived, None
        if state is None:
            return False
        self.outputs.put_back()
        try:
            apply_generators(self.find_generators(), state.rank["generators"])
        except ValueError as error:
            warnings.warn(f"random generators of the module or of callbacks are not restored: {error}", stacklevel=2)
        rest = self.embedding.rest
        apply_rng(state.rank["rng"] if rest is None else rest.training_rng)
        return True

    def _mend(self, state: State, *, trains: bool) -> None:
        trainer, module = self.trainer, self.trainer.lightning_module
        if self._max_steps is not None:
            self._epoch.max_steps, self._max_steps = self._max_steps, None
        if self.embedding.rest is not None:
            self.embedding.place_counters(state)
        # after reset(), which needs the flags to keep the position; with them on, the first batch's validation is lost
        self._package._Loop.restarting.fset(self._fit, False)
        self._epoch.reset_restart_stage()
        self._epoch.val_loop.reset_restart_stage()
        apply_modules(module, state.rank["modules"])
        apply_results(self._epoch._results, state.rank["results"], module, trainer.strategy.reduce)
        if state.rank["gradients"] is not None:
            apply_gradients(self._parameters, state.rank["gradients"])
        apply_marks(trainer, state.training["trainer"], goes_on=self._goes_on)
        apply_averaging(trainer, state.rank["averaging"])
        self.outputs.mend(state.rank["outputs"], shows=trains)
        if (inexact := self.embedding.reopen_epoch()) is not None:
            warnings.warn(inexact, stacklevel=2)
