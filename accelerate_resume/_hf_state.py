"""The state of a Trainer's loop, captured and put back; see `_hf_trainer` for the loop itself.

Attributes used: ``state``, ``control``, ``lr_scheduler``, ``_tr_loss``, ``_total_loss_scalar``,
``_globalstep_last_logged``, ``current_flos``, ``_initial_global_step``, ``_initial_num_input_tokens_seen``,
``callback_handler.callbacks``, ``neftune_hook_handle``; of ``TensorBoardCallback`` ``logging_dir``, ``tb_writer`` and
``_SummaryWriter``.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
import time
from collections.abc import Callable, Mapping
from typing import Any

from transformers import trainer as _module
from transformers.trainer_callback import ExportableState

__all__ = ["HfState", "Window"]

_FIELDS_OF_PROCESS = frozenset({
    "is_local_process_zero", "is_world_process_zero", "is_hyper_param_search", "trial_name", "trial_params",
    "max_steps", "num_train_epochs", "logging_steps", "eval_steps", "save_steps", "train_batch_size",
})  # fmt: skip
_LOOP = ("_total_loss_scalar", "_globalstep_last_logged", "current_flos", "_initial_global_step",
         "_initial_num_input_tokens_seen")  # fmt: skip
_ARGUMENTS = ("max_grad_norm", "label_smoothing_factor", "neftune_noise_alpha", "average_tokens_across_devices",
              "remove_unused_columns", "train_sampling_strategy", "use_liger_kernel", "torch_compile")  # fmt: skip


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


class HfState:
    """What there is to know of the loop of a Trainer.

    Args:
        trainer: of transformers.
    """

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer
        self.num_epochs = self.max_steps = self.steps_in_epoch = 0
        self.window = Window()
        self.goes_on_at: int | None = None
        """In the epoch in which a run goes on, until it does: how many of its batches were trained on."""
        self.is_at_end = False
        """Whether only the hooks at the end of that epoch are left."""
        self.is_interrupted = False
        """Whether training ends because a signal asks for it: the next start goes on."""
        self._saved_window: Window | None = None
        self._is_resumed = False
        self._last: dict[str, Any] = {"grad_norm": None, "learning_rate": None}
        self._start_s, self._elapsed_s = time.time(), 0.0
        self._put_back: list[Callable[[], None]] = []  # once loggers are open

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
    def evaluates_epochs(self) -> bool:
        """Whether an evaluation belongs to the end of each epoch."""
        return bool(self.trainer.args.eval_strategy == "epoch")

    @property
    def evaluates_next(self) -> bool:
        """Inside an epoch: whether an evaluation follows the next batch, by the rule of ``DefaultFlowCallback``."""
        args, state = self.trainer.args, self.trainer.state
        left, step = self.window.left if self.in_window else args.gradient_accumulation_steps, state.global_step + 1
        is_due = args.eval_strategy == "steps" and state.eval_steps and step % state.eval_steps == 0
        return bool(is_due and left == 1 and step >= args.eval_delay)

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
            "boards": [callback.logging_dir for callback in self._boards],
        }

    def stops(self, training: Mapping[str, Any]) -> bool:
        """Whether training was to end where it was saved, and still is: a limit counts as it is now."""
        asked = training["control"]["should_training_stop"] and not training["is_cut"]
        return bool(asked or training["state"]["global_step"] >= self.max_steps)

    def apply(self, training: Mapping[str, Any], rank: Mapping[str, Any]) -> None:
        """Put back what hooks may look at before training goes on."""
        self._is_resumed, self._elapsed_s = True, rank["elapsed_s"]
        self._apply_state(training)
        for callback, folder in zip(self._boards, rank["boards"], strict=False):
            self._go_on_logging(callback, folder, training["state"]["global_step"])

    def _go_on_logging(self, callback: Any, folder: str | None, step: int) -> None:
        """In the folder of the run, where TensorBoard then hides what a killed attempt had logged behind ``step``."""
        if folder is None or callback.tb_writer is not None:
            return
        callback.logging_dir = callback.logging_dir or folder
        plain = callback._SummaryWriter
        callback._SummaryWriter = functools.partial(plain, purge_step=step + 1)
        self._put_back.append(lambda: setattr(callback, "_SummaryWriter", plain))

    def go_on_at(self, num_batches: int, rank: Mapping[str, Any], *, is_at_end: bool) -> None:
        """The first epoch goes on behind so many batches."""
        self.goes_on_at, self.is_at_end = num_batches, is_at_end
        if rank["window"] is not None and not is_at_end:
            self.window, self._saved_window = Window(**rank["window"]), Window(**rank["window"])

    def _apply_state(self, training: Mapping[str, Any]) -> None:
        trainer = self.trainer
        for name, value in copy.deepcopy(dict(training["state"])).items():
            setattr(trainer.state, name, value)
        trainer.lr_scheduler.load_state_dict(copy.deepcopy(training["scheduler"]))

    def arrive(self, training: Mapping[str, Any], rank: Mapping[str, Any], *, between: bool) -> None:
        """Put back all that `capture_training` and `capture_rank` saw, whatever hooks have done meanwhile."""
        trainer, control = self.trainer, self.trainer.control
        self._apply_state(training)
        while self._put_back:
            self._put_back.pop()()
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
    def _boards(self) -> list[Any]:
        return [c for c in self.trainer.callback_handler.callbacks if type(c).__name__ == "TensorBoardCallback"]

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
