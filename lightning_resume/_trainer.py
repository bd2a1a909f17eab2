"""A Trainer's fit, taken over: what is shadowed, captured and applied, in which order.

Each kind of state has a module of its own beside this one (``_data``, ``_loops``, ``_results``, ``_averaging``,
``_outputs``, ``_tuners``, ``_ddp``, ``_embedding``, ``_weights``), which lists the internals that it uses.

Internals used (Lightning 2.6): ``trainer.fit_loop`` with its ``epoch_loop`` and ``val_loop``,
``trainer._checkpoint_connector``, ``trainer._logger_connector`` and ``trainer.strategy``. Methods are shadowed on the
instances, only during ``fit``, and given back by `TrainerAdapter.uninstall`. What is needed is probed by `_probe`.

The order of a fit, as far as it matters here (trainer/trainer.py, ``_run``): ``setup`` hooks, ``strategy.setup``
(optimizers exist from here on), ``on_fit_start``, ``restore_training_state``, sanity check, ``fit_loop.setup_data``
(train loaders and their first iterators), ``on_train_start``, ``on_train_epoch_start``, ``epoch_loop.on_run_start``,
batches, each closed by ``epoch_loop.on_advance_end``.
"""

from __future__ import annotations

import contextlib
import signal
import time
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from lightning_resume._averaging import (
    WEIGHTS_BESIDE_THE_AVERAGE,
    apply_averaging,
    capture_averaging,
    take_back_last_epoch,
)
from lightning_resume._callbacks import model_checkpoints
from lightning_resume._data import Data, came_from_fetch
from lightning_resume._ddp import bucket_layout, ranks_of
from lightning_resume._description import describe
from lightning_resume._embedding import Embedding, state_of
from lightning_resume._ending import clear_restart, ending, is_last, limits, validates_next
from lightning_resume._info import recorded_info
from lightning_resume._loops import apply_marks, capture_marks, hyper_parameters
from lightning_resume._outputs import Outputs
from lightning_resume._package import package_of
from lightning_resume._place import names_a_file
from lightning_resume._results import apply_results, capture_results
from lightning_resume._shadows import Shadows
from lightning_resume._tuners import Findings, finders, tuning_method
from lightning_resume._weights import live_weights
from resume_core.capture.generators import apply_generators, capture_generators, find_generators
from resume_core.capture.gradients import apply_gradients, capture_gradients
from resume_core.capture.modules import apply_modules, capture_modules, refilled
from resume_core.capture.optimizer import place_optimizer_state
from resume_core.capture.param_groups import apply_groups, capture_groups, group_sizes
from resume_core.capture.rng import apply_rng, capture_rng, preserved_rng
from resume_core.capture.weights import refuse_new_shapes, shapes, size_bytes, versioned
from resume_core.errors import ResumeError
from resume_core.state import Ahead, Ending, Fact, Progress, State, Vitals

__all__ = ["TrainerAdapter"]

_FRAMEWORKS = ("lightning.", "pytorch_lightning.", "lightning_resume.")
_VALIDATION, _EPOCH_END = "validation", "end of an epoch"


class TrainerAdapter:
    """A `Trainer` during one ``fit``, as a `resume_core.framework.Framework`.

    Args:
        trainer: in its ``setup`` hook.
        seed: the fact that `seed_fact` gave when ``fit`` began, before anything here could touch a generator.
        findings: what the finders of the run have found.
        goes_on: whether training goes on even from a checkpoint at which something had asked for its end.
        carries: whether what Lightning itself saves is made complete.
    """

    def __init__(
        self, trainer: Any, seed: Fact, findings: Findings, *, goes_on: bool = False, carries: bool = False
    ) -> None:
        self.trainer = trainer
        self._package = package_of(trainer)
        self._seed = seed
        self._goes_on = goes_on
        self._is_over = False
        self._findings = findings
        self._outputs = Outputs(trainer)
        self._hooks: dict[str, Callable[..., Any]] = {}
        self._fit, self._epoch = trainer.fit_loop, trainer.fit_loop.epoch_loop
        self._shadows = Shadows()
        self._logs_hparams: bool | None = None
        self._takes_signals = False
        self._restored: State | None = None
        self._begun = False
        self._max_steps: int | None = None
        self.ranks = ranks_of(trainer.strategy)
        self._data = Data(trainer, self.ranks)
        self._buckets = bucket_layout(trainer.strategy)
        self._generators: tuple[Any, ...] | None = None  # searched once a fit
        self._shapes: dict[str, Any] = {}
        self._groups: list[list[int]] = []
        self.model_checkpoint_s: float | None = None
        self.embedding = Embedding(self, carries=carries)

    # ---- hooks

    def open(self, preamble: Mapping[str, Any]) -> None:
        """Before `install`, with what the checkpoint that the run goes on from says first; empty for a new run."""
        self._outputs.open(preamble)

    def install(
        self,
        *,
        early: Callable[[], None],
        ready: Callable[[], None],
        first_fetch: Callable[[Progress], None],
        boundary: Callable[[Progress, Ahead], bool],
        pause: Callable[[str], contextlib.AbstractContextManager[None]],
        stranded: Callable[[Progress, BaseException], None],
        finish: Callable[[Progress, Ending], None],
        starts_from: Callable[[Any, bool], bool],
        loaded: Callable[[dict[str, Any], str], None],
        over: Callable[[], None],
        tuned: Callable[[], None],
        takes_signals: bool,
    ) -> None:
        """Shadow the Trainer's methods.

        Args:
            early: the train loaders are asked for before ``ready``, by ``estimated_stepping_batches`` for one.
            ready: model and optimizers exist, nothing is loaded yet.
            first_fetch: the first batch is about to be fetched; everything restored is in place.
            boundary: a batch and all that follows it is done; the second argument gives the kinds of pause that are
                ahead. True ends training.
            pause: a block that may last, by its kind.
            stranded: an exception came while a batch was fetched, which nothing was begun of.
            finish: training is over, and so are all hooks at its end.
            starts_from: whether a ``ckpt_path`` is to be loaded; the second argument says whether the user named it.
            loaded: it was read, and nothing of it applied yet.
            over: training had come to its end when that was saved.
            tuned: a finder has changed what decides this run.
            takes_signals: Lightning's own handlers, which stop ranks at different batches or for ever, stay out.
        """
        self._hooks = {
            "early": early,
            "ready": ready,
            "first_fetch": first_fetch,
            "boundary": boundary,
            "pause": pause,
            "stranded": stranded,
            "finish": finish,
            "starts_from": starts_from,
            "loaded": loaded,
            "over": over,
            "tuned": tuned,
        }
        self._takes_signals = takes_signals
        self._shadow()

    def mute(self) -> None:
        """Let Lightning write and delete no checkpoint of its own: this fit is a rehearsal."""
        self.around(self.trainer, "save_checkpoint", lambda plain, *args, **kwargs: None)
        self.around(self.trainer.strategy, "remove_checkpoint", lambda plain, *args, **kwargs: None)
        for callback in self.model_checkpoints:
            self.around(callback, "_link_checkpoint", lambda plain, *args, **kwargs: None)

    def install_for_tuner(self) -> None:
        """Shadow nothing but the tuning itself: this ``fit`` is that of a ``Tuner``."""
        for finder in finders(self.trainer.callbacks):
            self.around(finder, tuning_method(finder), self._findings.answer_or_note(finder))

    def _shadow(self) -> None:
        hooks = self._hooks
        connector, validation = self.trainer._checkpoint_connector, self._epoch.val_loop
        self._shadows.after(self.trainer.strategy, "setup", lambda: self._ready(hooks["ready"]))
        self.around(connector, "resume_start", self._resume_start)
        self._shadows.around(connector, "restore_training_state", self._restore_training)
        self._shadows.after(self._fit, "_load_combined_loader_states", lambda: self._data.watch())
        self.around(self._fit, "setup_data", lambda plain: self._data.set_up(plain, hooks["early"]))
        self.around(self._epoch, "reset", self._reset)
        self.around(
            self._epoch, "on_run_start", lambda plain, fetcher: self._run_start(plain, fetcher, hooks["first_fetch"])
        )
        self.around(self._epoch, "advance", self._advance)
        self._shadows.after(self._epoch, "on_advance_end", lambda: self._boundary(hooks["boundary"]))
        self._shadows.after(self._fit, "on_run_end", lambda: hooks["finish"](self.progress(), ending(self.trainer)))
        self.around(validation, "setup_data", lambda plain: self._data.set_up_validation(plain))
        self.around(validation, "run", self._validate)
        self.around(self._fit, "on_advance_end", self._end_epoch)
        self.around(self.trainer, "save_checkpoint", self._timed_save)
        if self._takes_signals:
            self.around(self.trainer._signal_connector, "register_signal_handlers", lambda plain: None)
        self._outputs.install(self.around)
        self.embedding.install()
        for finder in finders(self.trainer.callbacks):
            self.around(finder, tuning_method(finder), lambda plain, *_, finder=finder: self._tune(plain, finder))

    def around(self, owner: Any, name: str, wrapper: Callable[..., Any]) -> None:
        """Shadow a method until `uninstall`: ``wrapper`` is called with the plain one and its arguments."""
        self._shadows.around(owner, name, wrapper)

    def uninstall(self) -> None:
        """Give the Trainer and its loaders back as they were."""
        self._shadows.remove()
        self._buckets.release()
        self._outputs.put_back()
        if self._logs_hparams is not None:
            self.trainer.enable_autolog_hparams, self._logs_hparams = self._logs_hparams, None
        self._data.release()

    def skip_training(self) -> None:
        """Let this fit end at once, in the state that was applied: no sanity check, no loop, nothing logged."""
        self._is_over = True
        self._logs_hparams, self.trainer.enable_autolog_hparams = self.trainer.enable_autolog_hparams, False
        self.around(self.trainer, "_run_sanity_check", lambda plain: None)
        self.around(self._fit, "run", lambda plain: self._apply_end())

    def _apply_end(self) -> None:
        restored, self._restored = self._restored, None
        if restored is not None:
            self._mend(restored)
            self._outputs.put_back()
            self._apply_rng(restored)
        take_back_last_epoch(self.trainer)
        clear_restart(self._fit)

    @property
    def slurm(self) -> tuple[bool, str] | None:
        """Whether Lightning was told to requeue the job, and the signal that asks for it; None outside of SLURM."""
        environment = self.trainer._accelerator_connector.cluster_environment
        number = getattr(environment, "requeue_signal", None)
        return None if number is None else (bool(environment.auto_requeue), signal.Signals(number).name)

    def stop(self) -> None:
        """Ask Lightning to end training after the current batch."""
        self.trainer.should_stop = True

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
        return self._data.flattened

    @property
    def metrics(self) -> dict[str, float]:
        """``trainer.callback_metrics``, those that are one number, as Lightning has last computed them."""
        found = self.trainer._logger_connector._callback_metrics  # the property computes, and may meet other ranks
        return {str(name): float(value) for name, value in found.items() if value.numel() == 1}

    def prepare(self, key: int) -> None:
        """Ask for the train loaders, once."""
        self._data.ask(key)

    def preamble(self) -> dict[str, Any]:
        """Where the run logs, and what its finders have found."""
        return {**self._outputs.preamble(), "findings": self._findings.found}

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
            epoch=int(self.trainer.current_epoch),
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
            "loaders": self._data.train.state(num_batches),
            "results": capture_results(self._epoch._results),
            "modules": capture_modules(self.trainer.lightning_module),
            "averaging": capture_averaging(self.trainer),
            "gradients": self._open_gradients(),
            "generators": capture_generators(self._generators or ()),
            "outputs": self._outputs.capture(logs=logs),
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
            samples=self._data.train.samples(num_batches),
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
        self._outputs.apply(state.rank["outputs"])
        reloads = bool(self.trainer.reload_dataloaders_every_n_epochs)
        self._data.seek(state.rank["loaders"], state.training["trainer"], reloads=reloads)
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
        return self._outputs.files_with(place, path)

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

    # ---- what the shadows do

    def _resume_start(self, plain: Callable[..., None], checkpoint_path: Any = None, **options: Any) -> None:
        path = checkpoint_path or None
        if path is not None and not self._hooks["starts_from"](path, names_a_file(self.trainer)):
            path = None
        plain(path, **options)
        if path is not None:
            self._hooks["loaded"](self.trainer._checkpoint_connector._loaded_checkpoint, str(path))

    def _restore_training(self, plain: Callable[[], None]) -> None:
        if self._restored is not None:  # behind on_fit_start, where callbacks make groups of their own anew
            apply_groups(self.trainer.optimizers, self._parameters, self._restored.training.get("groups", {}))
        plain()
        self._place_optimizers()
        if self._restored is not None and self.embedding.rest is not None and not self.embedding.lead(self._restored):
            self._hooks["over"]()
            self.skip_training()

    def _place_optimizers(self) -> None:
        if self._restored is not None:
            saved = self._restored.training["checkpoint"].get("optimizer_states", ())
            for optimizer, state in zip(self.trainer.optimizers, saved, strict=False):
                place_optimizer_state(optimizer, state)

    def _ready(self, ready: Callable[[], None]) -> None:
        known = [finder for finder in finders(self.trainer.callbacks) if self._findings.knows(finder)]
        for finder in known:
            self._findings.put_back(finder, self.trainer)
        if known:
            self._data.forget()  # they may depend on what was found
        ready()
        if self._restored is not None:
            self._buckets.apply(self._restored.training.get("buckets"))
        self._buckets.watch()
        self._data.train.deferred = False

    def _tune(self, plain: Callable[..., None], finder: Any) -> None:
        """Let ``finder`` tune a new run, on the Trainer as Lightning made it."""
        if self._begun or self._fit.epoch_progress.total.ready:
            raise ResumeError(
                f"{type(finder).__name__} tunes in the middle of training, which is not supported: "
                "let it tune when fit begins, as it does by itself"
            )
        if self._is_over or self._restored is not None or self._findings.knows(finder):
            return
        with self._suspended():
            plain(self.trainer, self.trainer.lightning_module)
        self._findings.note(finder, self.trainer.lightning_module)
        self._hooks["tuned"]()

    @contextmanager
    def _suspended(self) -> Iterator[None]:
        self.uninstall()
        self._data.forget()  # if they were asked for early, their iterators wait for the run to begin
        try:
            yield
        finally:
            self._data.forget()
            self._data.train.deferred = False
            self._shadow()
            self._buckets.watch()

    def _reset(self, plain: Callable[[], None]) -> None:
        with warnings.catch_warnings():
            # true of Lightning alone: with the positions restored this loader is resumable
            warnings.filterwarnings("ignore", message=".*your dataloader is not resumable.*")
            plain()

    def _run_start(self, plain: Callable[[Any], None], fetcher: Any, first_fetch: Callable[[Progress], None]) -> None:
        restored, self._restored = self._restored, None
        self._find_generators()
        if restored is not None:
            self._mend(restored)
        plain(fetcher)
        self._data.train.count_from(int(self._epoch.batch_progress.current.processed))
        if restored is not None:
            self._outputs.put_back()
            self._apply_rng(restored)
        elif not self._begun:
            self._outputs.begin()
        self._begun = True
        if self.embedding.after_batch(fetcher):
            first_fetch(self.progress())

    def _find_generators(self) -> tuple[Any, ...]:
        if self._generators is None:
            # not through the Trainer, which is reached from everywhere (by the hooks that are shadowed on the module,
            # for one) and holds other objects in each attempt
            own = list(self.owners.values())
            self._generators = find_generators(own, closed=(self.trainer, own[0]._fabric))
        return self._generators

    def _apply_rng(self, state: State) -> None:
        self._restore_generators(state.rank["generators"])
        rest = self.embedding.rest
        apply_rng(state.rank["rng"] if rest is None else rest.training_rng)

    def _restore_generators(self, saved: list[Any]) -> None:
        try:
            apply_generators(self._find_generators(), saved)
        except ValueError as error:
            warnings.warn(f"random generators of the module or of callbacks are not restored: {error}", stacklevel=2)

    def _mend(self, state: State) -> None:
        """What Lightning neither saves nor restores, at the last moment before the first batch."""
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
        self._outputs.mend(state.rank["outputs"], shows=not self._is_over)
        if (inexact := self.embedding.reopen_epoch()) is not None:
            warnings.warn(inexact, stacklevel=2)

    def _boundary(self, boundary: Callable[[Progress, Ahead], bool]) -> None:
        if boundary(self.progress(at_boundary=True), self._ahead):
            self.stop()

    def _ahead(self) -> Collection[str]:
        ends_epoch = self._epoch._num_ready_batches_reached()
        return [_EPOCH_END] * ends_epoch + [_VALIDATION] * validates_next(self.trainer)

    def _advance(self, plain: Callable[[Any], None], fetcher: Any) -> None:
        try:
            plain(fetcher)
        except StopIteration:  # the end of the epoch
            raise
        except BaseException as error:
            if came_from_fetch(error, fetcher):
                self._hooks["stranded"](self.progress(), error)
            raise

    def _validate(self, plain: Callable[[], Any]) -> Any:
        is_check = self.trainer.sanity_checking
        pause = contextlib.nullcontext() if is_check else self._hooks["pause"](_VALIDATION)
        with pause, preserved_rng():  # what validation draws must not move training
            return plain()

    def _end_epoch(self, plain: Callable[[], Any]) -> Any:
        with self._hooks["pause"](_EPOCH_END):
            return plain()

    def _timed_save(self, plain: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        start = time.perf_counter()
        result = plain(*args, **kwargs)
        self.model_checkpoint_s = time.perf_counter() - start
        return result
