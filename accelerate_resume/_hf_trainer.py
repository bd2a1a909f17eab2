"""Every touch of the Hugging Face Trainer's internals; what is needed of them is probed at the start.

How a Trainer of transformers 5 trains, and what is shadowed on the instance while it does (names in brackets):

- ``train`` calls [``_inner_training_loop``], which makes the train loader [``get_train_dataloader``], works out how
  many steps there are [``set_initial_training_values``], makes a ``TrainerState`` and says in which epoch to begin
  [``_init_training_state``], and makes optimizer and scheduler [``_prepare_for_training``]. Here the last two are
  swapped: a checkpoint can be restored only into what is there, and it tells in which epoch to begin.
- [``_run_epoch``] goes over the loader once. For each optimizer step it takes all batches of the accumulation window
  at once [``get_batch_samples``] and trains on one after the other [``training_step``]. Where it begins inside an epoch
  it asks ``skip_first_batches`` of its module to pass over batches, which is answered here with the loader as it is,
  since that stands there already; behind its first fetch it asks for the random state [``_load_rng_state``].
- At the end of a step and of an epoch it logs, evaluates and saves [``_maybe_log_save_evaluate``, ``_evaluate``].
- When all is over: [``_finalize_training``].

Attributes of the loop: ``state``, ``control``, ``_tr_loss``, ``_total_loss_scalar``, ``_globalstep_last_logged``,
``current_flos``, ``_initial_global_step``, ``_initial_num_input_tokens_seen``,
``current_gradient_accumulation_steps``, ``callback_handler.callbacks``, ``_eval_dataloaders``.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import inspect
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
import transformers
from transformers import trainer as _module
from transformers.trainer_callback import ExportableState, TrainerState

from accelerate_resume._accelerator import PreparedLoader
from resume_core.errors import ResumeError

__all__ = ["Calls", "HfTrainer", "Window", "find_trainer", "probe", "put_first", "refuse_unsupported"]

_METHODS = {
    "_inner_training_loop": ("batch_size", "args", "resume_from_checkpoint", "trial"),
    "get_train_dataloader": (),
    "set_initial_training_values": ("args", "dataloader"),
    "_init_training_state": ("max_steps", "num_update_steps_per_epoch", "num_train_epochs", "resume_from_checkpoint"),
    "_prepare_for_training": ("max_steps", "train_dataloader", "resume_from_checkpoint"),
    "_run_epoch": ("epoch", "train_dataloader", "steps_in_epoch", "num_update_steps_per_epoch", "start_time",
                   "resume_from_checkpoint", "epochs_trained", "steps_trained_in_current_epoch"),
    "get_batch_samples": ("epoch_iterator", "num_batches"),
    "training_step": ("model", "inputs", "num_items_in_batch"),
    "_load_rng_state": ("checkpoint",),
    "_maybe_log_save_evaluate": ("tr_loss", "grad_norm", "learning_rate"),
    "_evaluate": ("trial", "ignore_keys_for_eval"),
    "_finalize_training": ("trial", "num_train_samples", "start_time"),
    "_save_checkpoint": ("model", "trial"),
}  # fmt: skip
_ATTRIBUTES = ("accelerator", "args", "callback_handler", "control", "current_flos", "model", "state",
               "is_deepspeed_enabled", "is_fsdp_enabled", "is_model_parallel")  # fmt: skip
_FIELDS = ("global_step", "log_history", "max_steps", "epoch", "best_metric", "stateful_callbacks")
_FIELDS_OF_PROCESS = frozenset({
    "is_local_process_zero", "is_world_process_zero", "is_hyper_param_search", "trial_name", "trial_params",
    "max_steps", "num_train_epochs", "logging_steps", "eval_steps", "save_steps", "train_batch_size",
})  # fmt: skip
_LOOP = ("_total_loss_scalar", "_globalstep_last_logged", "current_flos", "_initial_global_step",
         "_initial_num_input_tokens_seen")  # fmt: skip
_ARGUMENTS = ("max_grad_norm", "label_smoothing_factor", "neftune_noise_alpha", "average_tokens_across_devices")
_GOES_ON = "exact-resume"  # what the loop is told to resume from: nobody reads it


def probe(trainer: Any) -> None:
    """Check that the internals this module relies on are there.

    Raises:
        ResumeError: something is missing; the message names it and the version of transformers.
    """
    plain = transformers.Trainer
    missing = [f"Trainer.{name}" for name in _METHODS if not hasattr(plain, name)]
    missing += [f"Trainer().{name}" for name in _ATTRIBUTES if not hasattr(trainer, name)]
    missing += [
        f"Trainer.{name}({argument}=)"
        for name, arguments in _METHODS.items()
        for argument in arguments
        if hasattr(plain, name) and argument not in inspect.signature(getattr(plain, name)).parameters
    ]
    missing += [f"transformers.trainer.{name}" for name in ("skip_first_batches",) if not hasattr(_module, name)]
    known = {field.name for field in dataclasses.fields(TrainerState)}
    missing += [f"TrainerState.{name}" for name in _FIELDS if name not in known]
    if missing:
        raise ResumeError(
            f"transformers {transformers.__version__} lacks what accelerate_resume hooks into: {', '.join(missing)}. "
            "Install a version of it that exact-resume supports, or a newer exact-resume."
        )


def refuse_unsupported(trainer: Any, trial: Any) -> None:
    """Refuse what this version would not resume exactly.

    Raises:
        ResumeError: names what is not supported and what to do.
    """
    args = trainer.args
    sharded = ("is_fsdp_enabled", "is_fsdp_xla_enabled", "is_distributed_loading_by_transformers")
    found = {
        "a hyperparameter search": trial is not None,
        "auto_find_batch_size": args.auto_find_batch_size,
        "DeepSpeed": trainer.is_deepspeed_enabled,
        "FSDP, or a model that was sharded when it was loaded": any(getattr(trainer, name, False) for name in sharded),
        "a model spread over several devices": trainer.is_model_parallel,
        "DataParallel (several GPUs in one process)": args.n_gpu > 1,
        "an IterableDataset": isinstance(trainer.train_dataset, torch.utils.data.IterableDataset),
    }
    names = [name for name, is_there in found.items() if is_there]
    if names:
        raise ResumeError(
            f"TrainerResumeCallback does not support {' and '.join(names)} yet: train on a map-style dataset, on a "
            "single device or with DistributedDataParallel (torchrun, one process for each GPU), or take it out"
        )


def find_trainer(callback: Any) -> Any:
    """The Trainer that is calling a hook of ``callback``: hooks are told everything but this. None without one."""
    frame = sys._getframe(1)
    while frame is not None:
        owner = frame.f_locals.get("self")
        if isinstance(owner, transformers.Trainer) and callback in owner.callback_handler.callbacks:
            return owner
        frame = frame.f_back  # type: ignore[assignment]
    return None


def put_first(trainer: Any, callback: Any) -> None:
    """Let the hooks of ``callback`` run before those of all others; it is added if it is not there."""
    handler = trainer.callback_handler
    handler.callbacks = [callback, *(other for other in handler.callbacks if other is not callback)]


@dataclasses.dataclass(frozen=True)
class Calls:
    """What is called while a Trainer trains.

    Attributes:
        start: everything is made: restore. Gives the epoch to begin in.
        enter_epoch: an epoch begins, or goes on.
        leave_epoch: all of an epoch is done.
        before_window: the batches of a window are about to be taken.
        before_batch: a batch inside a window is about to be trained on.
        after_batch: its gradients are there.
        is_through: the loop over epochs is through.
    """

    start: Callable[[], int]
    enter_epoch: Callable[[int], None]
    leave_epoch: Callable[[], None]
    before_window: Callable[[], None]
    before_batch: Callable[[], None]
    after_batch: Callable[[], None]
    is_through: Callable[[], None]


@dataclasses.dataclass
class Window:
    """An accumulation window.

    Attributes:
        num_items: what its losses are divided by.
        size: batches in it, which they are divided by otherwise.
        left: batches that were not trained on.
    """

    num_items: Any = None
    size: int = 0
    left: int = 0


class HfTrainer:
    """A Trainer, taken over for one call of ``train``.

    Args:
        trainer: of transformers.
    """

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer
        self._shadowed: dict[str, Any] = {}
        self._calls: Calls | None = None
        self._prepared: Any = None
        self.train_loader: Any = None
        self.num_epochs = self.max_steps = self.steps_in_epoch = 0
        self.window = Window()
        self.goes_on_at: int | None = None
        """In the epoch in which a run goes on, until it does: how many of its batches were trained on."""
        self.is_at_end = False
        """Whether only the hooks at the end of that epoch are left."""
        self._saved_window: Window | None = None
        self._is_in_epoch = self._is_resumed = self._is_after_step = False
        self.is_interrupted = False
        """Whether training ends because a signal asks for it: the next start goes on."""
        self._last: dict[str, Any] = {"grad_norm": None, "learning_rate": None}
        self._start_s, self._elapsed_s = time.time(), 0.0

    # ---- a call of train

    def around(self, name: str, wrapper: Callable[..., Any]) -> None:
        """Shadow a method on the instance: ``wrapper`` is called with the plain one and its arguments."""
        plain_method = getattr(self.trainer, name)

        def shadow(*args: Any, **kwargs: Any) -> Any:
            return wrapper(plain_method, *args, **kwargs)

        self._shadowed[name] = vars(self.trainer).get(name)
        vars(self.trainer)[name] = shadow

    def install(self, calls: Calls) -> None:
        """Follow the call of ``train`` that has just begun."""
        self._calls = calls
        vars(self.trainer).pop("_eval_dataloaders", None)  # loaders of before, which nobody has taken over
        prepare = self.trainer._prepare_for_training
        self.around("get_train_dataloader", self._get_train_dataloader)
        self.around("set_initial_training_values", self._set_initial_training_values)
        self.around("_init_training_state", lambda plain, *args, **kwargs: self._begin(prepare, plain, args, kwargs))
        self.around("_prepare_for_training", lambda plain, *args, **kwargs: self._prepared)
        self.around("_run_epoch", self._run_epoch)
        self.around("get_batch_samples", self._get_batch_samples)
        self.around("training_step", self._training_step)
        self.around("_load_rng_state", self._load_rng_state)
        self.around("_maybe_log_save_evaluate", self._maybe_log_save_evaluate)
        self.around("_evaluate", self._evaluate)
        self.around("_finalize_training", self._finalize_training)
        self.around("_save_checkpoint", self._save_checkpoint)

    def uninstall(self) -> None:
        """Give the Trainer back as it was."""
        for name, before in self._shadowed.items():
            if before is None:
                vars(self.trainer).pop(name, None)
            else:
                vars(self.trainer)[name] = before
        self._shadowed = {}

    @property
    def calls(self) -> Calls:
        """What is called."""
        assert self._calls is not None
        return self._calls

    def _get_train_dataloader(self, plain: Callable[[], Any]) -> Any:
        loader = plain()
        if PreparedLoader.of(loader) is not None:
            return loader
        if self.trainer.accelerator.num_processes > 1:
            raise ResumeError(
                f"get_train_dataloader() gives a {type(loader).__name__} that was not prepared: let it return "
                "self.accelerator.prepare(loader), so that a resume finds its place for each rank"
            )
        return self.trainer.accelerator.prepare_data_loader(loader)

    def _set_initial_training_values(self, plain: Callable[..., Any], args: Any, dataloader: Any) -> Any:
        values = plain(args, dataloader)
        self.train_loader = dataloader
        self.num_epochs, self.steps_in_epoch, self.max_steps = int(values[0]), int(values[5]), int(values[6])
        return values

    def _begin(self, prepare: Callable[..., Any], plain: Callable[..., Any], args: Any, kwargs: Any) -> tuple[int, int]:
        plain(*args, **kwargs)
        self._prepared = prepare(self.max_steps, self.train_loader, None)
        return self.calls.start(), 0

    # ---- an epoch

    def _run_epoch(self, plain: Callable[..., Any], *, epoch: int, **kwargs: Any) -> None:
        self.calls.enter_epoch(epoch)
        self._is_in_epoch = True
        kwargs["start_time"] = self._begun_at_s
        if self.goes_on_at:
            kwargs |= {"resume_from_checkpoint": _GOES_ON, "epochs_trained": epoch}
            kwargs["steps_trained_in_current_epoch"] = self.goes_on_at
            if self.is_at_end:
                kwargs["num_update_steps_per_epoch"] = 0
        with self._without_skipping() if self.goes_on_at else contextlib.nullcontext():
            plain(epoch=epoch, **kwargs)
        self._is_in_epoch, self.goes_on_at, self.is_at_end = False, None, False
        self.calls.leave_epoch()

    @contextlib.contextmanager
    def _without_skipping(self) -> Iterator[None]:
        """Until the loop has asked to skip what was trained on, at the very start of the epoch."""
        args, plain = self.trainer.args, _module.skip_first_batches
        ignores = args.ignore_data_skip  # it saves time in vain here: skipping takes none

        def put_back() -> None:
            _module.skip_first_batches, args.ignore_data_skip = plain, ignores

        def skip(loader: Any, num_batches: int = 0) -> Any:
            put_back()
            return loader

        _module.skip_first_batches, args.ignore_data_skip = skip, False
        try:
            yield
        finally:
            put_back()

    def _get_batch_samples(
        self, plain: Callable[..., Any], epoch_iterator: Any, num_batches: int, *args: Any, **kwargs: Any
    ) -> Any:
        self.calls.before_window()
        saved = self._saved_window
        samples, num_items = plain(epoch_iterator, num_batches if saved is None else saved.left, *args, **kwargs)
        self.window = Window(num_items, len(samples), len(samples)) if saved is None else saved
        return samples, self.window.num_items

    def _load_rng_state(self, plain: Callable[..., Any], checkpoint: Any) -> None:
        """Called behind the first fetch of an epoch that goes on, and random generators are back by then."""
        saved, self._saved_window = self._saved_window, None
        if saved is not None:
            self.trainer.current_gradient_accumulation_steps = saved.size

    def _training_step(self, plain: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if self.window.left < self.window.size:
            self.calls.before_batch()
        loss = plain(*args, **kwargs)
        self.window.left -= 1
        self.calls.after_batch()
        return loss

    def _maybe_log_save_evaluate(
        self, plain: Callable[..., Any], tr_loss: Any, grad_norm: Any, *args: Any, **kwargs: Any
    ) -> None:
        if kwargs.get("learning_rate") is None:  # gone on at the end of an epoch, the loop has made no step yet
            grad_norm, kwargs["learning_rate"] = self._last["grad_norm"], self._last["learning_rate"]
        self._last = {"grad_norm": grad_norm, "learning_rate": kwargs["learning_rate"]}
        self._is_after_step = True
        plain(tr_loss, grad_norm, *args, **kwargs)
        self._is_after_step = False

    def _save_checkpoint(self, plain: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        # in any other place it is the Trainer's own handler of SIGTERM, which also asks for the end of training
        self.is_interrupted = self.trainer.args.enable_jit_checkpoint and not self._is_after_step
        plain(*args, **kwargs)

    def _evaluate(self, plain: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if self._is_resumed and not self._is_in_epoch:
            return {}  # ``eval_on_start``: that was done when the run began
        return plain(*args, **kwargs)

    def _finalize_training(self, plain: Callable[..., Any], trial: Any, num_train_samples: Any, start_time: Any) -> Any:
        self.calls.is_through()
        return plain(trial, num_train_samples, self._begun_at_s)

    # ---- where it stands

    @property
    def _begun_at_s(self) -> float:
        """When training would have begun if nothing had interrupted it: speeds are those of all of it."""
        return self._start_s - self._elapsed_s

    @property
    def in_window(self) -> bool:
        """Whether some batches of a window were trained on, and others not."""
        return 0 < self.window.left < self.window.size

    @property
    def is_stopped(self) -> bool:
        """Whether a hook or a limit has asked for the end of training."""
        return bool(self.trainer.control.should_training_stop)

    @property
    def is_at_limit(self) -> bool:
        """Whether as many steps were made as there are to be."""
        return bool(self.trainer.state.global_step >= self.max_steps)

    @property
    def arguments(self) -> dict[str, Any]:
        """Arguments that decide a run and sit in no object that is described otherwise."""
        args = self.trainer.args
        found = {f"trainer.{name}": getattr(args, name, None) for name in _ARGUMENTS}
        return found | {"accumulation.num_steps": args.gradient_accumulation_steps}

    # ---- state

    def capture_training(self) -> dict[str, Any]:
        """What all ranks have alike: live references."""
        trainer = self.trainer
        fields = [field.name for field in dataclasses.fields(trainer.state) if field.name not in _FIELDS_OF_PROCESS]
        return {
            "state": {name: getattr(trainer.state, name) for name in fields},
            "scheduler": trainer.lr_scheduler.state_dict(),
            "control": dataclasses.asdict(trainer.control),
            "is_cut": self.is_at_limit or self.is_interrupted,
        }

    def capture_rank(self) -> dict[str, Any]:
        """What each rank has of its own: live references."""
        trainer = self.trainer
        return {
            "tr_loss": trainer._tr_loss,
            "loop": {name: getattr(trainer, name) for name in _LOOP},
            "last": dict(self._last),
            "elapsed_s": time.time() - self._begun_at_s,
            "window": vars(self.window).copy() if self.in_window else None,
            "callbacks": [[type(callback).__name__, callback.state()] for callback in self._stateful],
        }

    def stops(self, training: Mapping[str, Any]) -> bool:
        """Whether training was to end where it was saved, and still is: a limit counts as it is now."""
        asked = training["control"]["should_training_stop"] and not training["is_cut"]
        return bool(asked or training["state"]["global_step"] >= self.max_steps)

    def apply(self, training: Mapping[str, Any], rank: Mapping[str, Any]) -> None:
        """Put back what hooks may look at before training goes on."""
        self._is_resumed, self._elapsed_s = True, rank["elapsed_s"]
        self._apply_state(training)

    def go_on_at(self, num_batches: int, rank: Mapping[str, Any], *, is_at_end: bool) -> None:
        """The first epoch goes on behind so many batches."""
        self.goes_on_at, self.is_at_end = num_batches, is_at_end
        if rank["window"] is not None and not is_at_end:
            self._saved_window = Window(**rank["window"])

    def _apply_state(self, training: Mapping[str, Any]) -> None:
        trainer = self.trainer
        for name, value in copy.deepcopy(dict(training["state"])).items():
            setattr(trainer.state, name, value)
        trainer.lr_scheduler.load_state_dict(copy.deepcopy(training["scheduler"]))

    def arrive(self, training: Mapping[str, Any], rank: Mapping[str, Any], *, between: bool) -> None:
        """Put back all that `capture_training` and `capture_rank` saw, whatever hooks have done meanwhile."""
        trainer, control = self.trainer, self.trainer.control
        self._apply_state(training)
        trainer._tr_loss = rank["tr_loss"].to(trainer.args.device, copy=True)
        for name, value in rank["loop"].items():
            setattr(trainer, name, value)
        self._last = dict(rank["last"])
        for name, value in training["control"].items():
            setattr(control, name, value)
        control.should_training_stop = self.stops(training)
        control.should_epoch_stop = control.should_epoch_stop and not between
        _apply_callbacks(self._stateful, rank["callbacks"])

    @property
    def _stateful(self) -> list[Any]:
        return [c for c in self.trainer.callback_handler.callbacks if isinstance(c, ExportableState)]

    @property
    def own_callbacks(self) -> dict[str, Any]:
        """Those of the user's code, by the names of their classes."""
        found = self.trainer.callback_handler.callbacks
        kinds = [type(callback).__module__.partition(".")[0] for callback in found]
        own = [c for c, kind in zip(found, kinds, strict=True) if kind not in ("transformers", "accelerate_resume")]
        return {f"{type(callback).__name__}.{place}": callback for place, callback in enumerate(own)}

    @property
    def attributes(self) -> frozenset[str]:
        """Names that the Trainer itself uses on its objects: what changes there is its own business."""
        classes = [cls for cls in type(self.trainer).__mro__ if cls.__module__.startswith("transformers.")]
        functions = [value for cls in classes for value in vars(cls).values() if inspect.isfunction(value)]
        return frozenset(name for function in functions for name in function.__code__.co_names)

    def leave(self) -> None:
        """Training had come to its end before: what the loop would do last."""
        self.trainer.is_in_train = False
        if self.trainer.neftune_noise_alpha is not None:
            _module.deactivate_neftune(self.trainer.model, self.trainer.neftune_hook_handle, self.trainer.accelerator)


def _apply_callbacks(callbacks: list[Any], saved: list[Any]) -> None:
    """Give callbacks the state of those that had their class and place; they stay the objects that users hold."""
    waiting = [(str(name), state) for name, state in saved]
    for callback in callbacks:
        found = next((item for item in waiting if item[0] == type(callback).__name__), None)
        if found is None:
            continue
        waiting.remove(found)
        state = copy.deepcopy(found[1])
        settings = {name: value for name, value in state.get("args", {}).items() if hasattr(callback, name)}
        for name, value in {**settings, **state.get("attributes", {})}.items():
            setattr(callback, name, value)
