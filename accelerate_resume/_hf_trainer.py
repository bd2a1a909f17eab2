"""The loop of the Hugging Face Trainer, followed: with `_hf_state` and `_hf_folders`, every touch of its internals.

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

Attributes: ``current_gradient_accumulation_steps``, ``_eval_dataloaders``; those that are saved are in `_hf_state`.
What is needed is probed in `_hf_probe`. The folders that a Trainer writes are the business of `_hf_folders`.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

from transformers import trainer as _module

from accelerate_resume._accelerator import PreparedLoader
from accelerate_resume._hf_folders import CheckpointFolders
from accelerate_resume._hf_state import HfState, Window
from resume_core.errors import ResumeError

__all__ = ["Calls", "HfTrainer"]

_GOES_ON = "exact-resume"  # what the loop is told to resume from: nobody reads it


@dataclasses.dataclass(frozen=True)
class Calls:
    """What is called while a Trainer trains.

    Attributes:
        open: training begins. Gives a folder that the Trainer alone has written, if it is to go on from one.
        start: everything is made: restore. Gives the epoch to begin in.
        enter_epoch: an epoch begins, or goes on.
        leave_epoch: all of an epoch is done.
        before_window: the batches of a window are about to be taken.
        stranded: an exception came while they were.
        before_batch: a batch inside a window is about to be trained on.
        given: what is trained on, right before that.
        after_batch: its gradients are there.
        is_through: the loop over epochs is through.
        evaluation: a block in which the Trainer evaluates.
        before_checkpoint: the Trainer is about to write a folder of its own.
    """

    open: Callable[[], str | None]
    start: Callable[[], int]
    enter_epoch: Callable[[int], None]
    leave_epoch: Callable[[], None]
    before_window: Callable[[], None]
    stranded: Callable[[BaseException], None]
    before_batch: Callable[[], None]
    given: Callable[[Any], None]
    after_batch: Callable[[], None]
    is_through: Callable[[], None]
    evaluation: Callable[[], contextlib.AbstractContextManager[None]]
    before_checkpoint: Callable[[str], None]


class HfTrainer(HfState):
    """A Trainer, taken over for one call of ``train``.

    Args:
        trainer: of transformers.
    """

    def __init__(self, trainer: Any) -> None:
        super().__init__(trainer)
        self._shadowed: dict[str, Any] = {}
        self._calls: Calls | None = None
        self._prepared: Any = None
        self.train_loader: Any = None
        self.foreign: str | None = None
        """A folder that the Trainer alone has written, which training goes on from."""
        self.foreign_place = (0, 0)
        """The epoch and the batches of it that such a folder is behind."""
        self.saved: tuple[str, int, int] | None = None
        """A folder that the Trainer has just written, at which step, behind how many batches."""
        self.num_batches: Callable[[], int] = lambda: 0
        """How many batches were trained on."""
        self._is_in_epoch = self._is_after_step = False

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
        self.around("_init_training_state", lambda plain, *args: self._begin(prepare, plain, *args))
        self.around("_prepare_for_training", lambda plain, *args, **kwargs: self._prepared)
        self.around("_run_epoch", self._run_epoch)
        self.around("get_batch_samples", self._get_batch_samples)
        self.around("training_step", self._training_step)
        self.around("_load_rng_state", self._load_rng_state)
        self.around("_maybe_log_save_evaluate", self._maybe_log_save_evaluate)
        self.around("_evaluate", self._evaluate)
        self.around("_finalize_training", self._finalize_training)
        self.around("_save_checkpoint", self._save_checkpoint)

    def mute(self) -> None:
        """Let the Trainer write no folder of its own, and report to nobody: this run is a rehearsal."""
        self.around("_save_checkpoint", lambda plain, *args, **kwargs: None)
        handler = self.trainer.callback_handler
        reports = [c for c in handler.callbacks if type(c).__module__.startswith("transformers.integrations")]
        handler.callbacks = [callback for callback in handler.callbacks if callback not in reports]

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

    def _begin(
        self,
        prepare: Callable[..., Any],
        plain: Callable[..., Any],
        max_steps: int,
        num_update_steps_per_epoch: int,
        num_train_epochs: int,
        resume_from_checkpoint: Any,
        trial: Any,
    ) -> tuple[int, int]:
        self.foreign = self.calls.open()
        self.foreign_place = plain(max_steps, num_update_steps_per_epoch, num_train_epochs, self.foreign, trial)
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
        try:
            samples, num_items = plain(epoch_iterator, num_batches if saved is None else saved.left, *args, **kwargs)
        except BaseException as error:
            self.calls.stranded(error)
            raise
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
        self.calls.given(args[1] if len(args) > 1 else kwargs.get("inputs"))
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
        folders = CheckpointFolders(self.trainer)
        folder = folders.folder(args[1] if len(args) > 1 else kwargs.get("trial"))
        self.calls.before_checkpoint(folder)
        with folders.keeping_all():
            plain(*args, **kwargs)
        self.saved = folder, self.trainer.state.global_step, self.num_batches()

    def _evaluate(self, plain: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if self._is_resumed and not self._is_in_epoch:
            return {}  # ``eval_on_start``: that was done when the run began
        with self.calls.evaluation():
            return plain(*args, **kwargs)

    def _finalize_training(self, plain: Callable[..., Any], trial: Any, num_train_samples: Any, start_time: Any) -> Any:
        self.calls.is_through()
        return plain(trial, num_train_samples, self._begun_at_s)
