"""A Trainer's fit, taken over: what is shadowed, in which order.

What is captured and applied then is up to ``_framework``.

Internals used (Lightning 2.6): ``trainer.fit_loop`` with its ``epoch_loop`` and ``val_loop``,
``trainer._checkpoint_connector``, ``_signal_connector`` and ``_accelerator_connector``, and ``trainer.strategy``.
Methods are shadowed on the instances, only during ``fit``, and given back by `TrainerAdapter.uninstall`. What is needed
is probed by `_probe`.

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
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from lightning_resume._averaging import take_back_last_epoch
from lightning_resume._data import came_from_fetch
from lightning_resume._ending import clear_restart, ending, validates_next
from lightning_resume._framework import FitFramework
from lightning_resume._place import names_a_file
from lightning_resume._shadows import Shadows
from lightning_resume._tuners import Findings, finders, tuning_method
from resume_core.capture.rng import preserved_rng
from resume_core.errors import ResumeError
from resume_core.state import Ahead, Ending, Progress

__all__ = ["Moments", "TrainerAdapter"]

_VALIDATION, _EPOCH_END = "validation", "end of an epoch"


@dataclass(frozen=True)
class Moments:
    """What is called at the moments of a fit that a session decides at.

    Attributes:
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
    """

    early: Callable[[], None]
    ready: Callable[[], None]
    first_fetch: Callable[[Progress], None]
    boundary: Callable[[Progress, Ahead], bool]
    pause: Callable[[str], contextlib.AbstractContextManager[None]]
    stranded: Callable[[Progress, BaseException], None]
    finish: Callable[[Progress, Ending], None]
    starts_from: Callable[[Any, bool], bool]
    loaded: Callable[[dict[str, Any], str], None]
    over: Callable[[], None]
    tuned: Callable[[], None]


class TrainerAdapter:
    """A `Trainer` during one ``fit``, whose methods tell of its moments.

    Args:
        framework: of the same ``fit``.
        findings: what the finders of the run have found.
    """

    def __init__(self, framework: FitFramework, findings: Findings) -> None:
        self.framework, self.trainer = framework, framework.trainer
        self._findings, self._data = findings, framework.data
        self._fit, self._epoch = self.trainer.fit_loop, self.trainer.fit_loop.epoch_loop
        self._shadows = Shadows()
        self._logs_hparams: bool | None = None
        self._takes_signals = self._has_begun = self._is_over = False
        self.model_checkpoint_s: float | None = None
        """Seconds that Lightning's newest checkpoint has taken; None before the first."""

    # ---- taking over, and giving back

    def install(self, moments: Moments, *, takes_signals: bool) -> None:
        """Shadow the Trainer's methods.

        Args:
            moments: what to call.
            takes_signals: Lightning's own handlers, which stop ranks at different batches or for ever, stay out.
        """
        self._moments, self._takes_signals = moments, takes_signals
        self._shadow()

    def mute(self) -> None:
        """Let Lightning write and delete no checkpoint of its own: this fit is a rehearsal."""
        self.around(self.trainer, "save_checkpoint", lambda plain, *args, **kwargs: None)
        self.around(self.trainer.strategy, "remove_checkpoint", lambda plain, *args, **kwargs: None)
        for callback in self.framework.model_checkpoints:
            self.around(callback, "_link_checkpoint", lambda plain, *args, **kwargs: None)

    def install_for_tuner(self) -> None:
        """Shadow nothing but the tuning itself: this ``fit`` is that of a ``Tuner``."""
        for finder in finders(self.trainer.callbacks):
            self.around(finder, tuning_method(finder), self._findings.answer_or_note(finder))

    def _shadow(self) -> None:
        trainer, fit, epoch, data = self.trainer, self._fit, self._epoch, self._data
        connector, validation = trainer._checkpoint_connector, epoch.val_loop
        self._shadows.after(trainer.strategy, "setup", self._ready)
        self.around(connector, "resume_start", self._resume_start)
        self.around(connector, "restore_training_state", self._restore_training)
        self._shadows.after(fit, "_load_combined_loader_states", data.watch)
        self.around(fit, "setup_data", lambda plain: data.set_up(plain, self._moments.early))
        self.around(epoch, "reset", self._reset)
        self.around(epoch, "on_run_start", self._run_start)
        self.around(epoch, "advance", self._advance)
        self._shadows.after(epoch, "on_advance_end", self._boundary)
        self._shadows.after(fit, "on_run_end", self._run_end)
        self.around(validation, "setup_data", data.set_up_validation)
        self.around(validation, "run", self._validate)
        self.around(fit, "on_advance_end", self._end_epoch)
        self.around(trainer, "save_checkpoint", self._timed_save)
        if self._takes_signals:
            self.around(trainer._signal_connector, "register_signal_handlers", lambda plain: None)
        self.framework.outputs.install(self.around)
        self.framework.embedding.install(self.around)
        for finder in finders(trainer.callbacks):
            self.around(finder, tuning_method(finder), lambda plain, *_, finder=finder: self._tune(plain, finder))

    def around(self, owner: Any, name: str, wrapper: Callable[..., Any]) -> None:
        """Shadow a method until `uninstall`: ``wrapper`` is called with the plain one and its arguments."""
        self._shadows.around(owner, name, wrapper)

    def uninstall(self) -> None:
        """Give the Trainer and its loaders back as they were."""
        self._shadows.remove()
        if self._logs_hparams is not None:
            self.trainer.enable_autolog_hparams, self._logs_hparams = self._logs_hparams, None
        self.framework.release()

    def skip_training(self) -> None:
        """Let this fit end at once, in the state that was applied: no sanity check, no loop, nothing logged."""
        self._is_over = True
        self._logs_hparams, self.trainer.enable_autolog_hparams = self.trainer.enable_autolog_hparams, False
        self.around(self.trainer, "_run_sanity_check", lambda plain: None)
        self.around(self._fit, "run", lambda plain: self._apply_end())

    def _apply_end(self) -> None:
        self.framework.arrive(trains=False)
        self.framework.put_back_last()
        take_back_last_epoch(self.trainer)
        clear_restart(self._fit)

    @property
    def slurm(self) -> tuple[bool, str] | None:
        """Whether Lightning was told to requeue the job, and the signal that asks for it; None outside of SLURM."""
        environment = self.trainer._accelerator_connector.cluster_environment
        number = getattr(environment, "requeue_signal", None)
        return None if number is None else (bool(environment.auto_requeue), signal.Signals(number).name)

    # ---- what the shadows do

    def _resume_start(self, plain: Callable[..., None], checkpoint_path: Any = None, **options: Any) -> None:
        path = checkpoint_path or None
        if path is not None and not self._moments.starts_from(path, names_a_file(self.trainer)):
            path = None
        plain(path, **options)
        if path is not None:
            self._moments.loaded(self.trainer._checkpoint_connector._loaded_checkpoint, str(path))

    def _restore_training(self, plain: Callable[[], None]) -> None:
        if not self.framework.load(plain):
            self._moments.over()
            self.skip_training()

    def _ready(self) -> None:
        known = [finder for finder in finders(self.trainer.callbacks) if self._findings.knows(finder)]
        for finder in known:
            self._findings.put_back(finder, self.trainer)
        if known:
            self._data.forget()  # they may depend on what was found
        self._moments.ready()
        self.framework.lay_out_buckets()
        self._data.train.deferred = False

    def _tune(self, plain: Callable[..., None], finder: Any) -> None:
        """Let ``finder`` tune a new run, on the Trainer as Lightning made it."""
        if self._has_begun or self._fit.epoch_progress.total.ready:
            raise ResumeError(
                f"{type(finder).__name__} tunes in the middle of training, which is not supported: "
                "let it tune when fit begins, as it does by itself"
            )
        if self._is_over or self.framework.is_restoring or self._findings.knows(finder):
            return
        with self._suspended():
            plain(self.trainer, self.trainer.lightning_module)
        self._findings.note(finder, self.trainer.lightning_module)
        self._moments.tuned()

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
            self.framework.lay_out_buckets()

    def _reset(self, plain: Callable[[], None]) -> None:
        with warnings.catch_warnings():
            # true of Lightning alone: with the positions restored this loader is resumable
            warnings.filterwarnings("ignore", message=".*your dataloader is not resumable.*")
            plain()

    def _run_start(self, plain: Callable[[Any], None], fetcher: Any) -> None:
        framework = self.framework
        framework.find_generators()
        framework.arrive(trains=True)
        plain(fetcher)
        self._data.train.count_from(int(self._epoch.batch_progress.current.processed))
        if not framework.put_back_last() and not self._has_begun:
            framework.outputs.begin()
        self._has_begun = True
        if framework.embedding.after_batch(fetcher):
            self._moments.first_fetch(framework.progress())

    def _boundary(self) -> None:
        if self._moments.boundary(self.framework.progress(at_boundary=True), self._ahead):
            self.trainer.should_stop = True

    def _run_end(self) -> None:
        self._moments.finish(self.framework.progress(), ending(self.trainer))

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
                self._moments.stranded(self.framework.progress(), error)
            raise

    def _validate(self, plain: Callable[[], Any]) -> Any:
        is_check = self.trainer.sanity_checking
        pause = contextlib.nullcontext() if is_check else self._moments.pause(_VALIDATION)
        with pause, preserved_rng():  # what validation draws must not move training
            return plain()

    def _end_epoch(self, plain: Callable[[], Any]) -> Any:
        with self._moments.pause(_EPOCH_END):
            return plain()

    def _timed_save(self, plain: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        start = time.perf_counter()
        result = plain(*args, **kwargs)
        self.model_checkpoint_s = time.perf_counter() - start
        return result
