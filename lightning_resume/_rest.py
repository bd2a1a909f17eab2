"""What Lightning still had to do when it saved inside a hook: noted with the checkpoint, and done by the resumed run.

Each of the functions that end in ``_rest``, and `Rest.after_epoch`, is the tail of one of Lightning's, from the hook in
which the checkpoint was taken on (Lightning 2.6): ``_TrainingEpochLoop.advance``, ``_EvaluationLoop.on_run_end`` and
``_FitLoop.on_advance_end``.
"""

from __future__ import annotations

import time
from collections import ChainMap
from collections.abc import Mapping
from typing import Any

import torch

from lightning_resume._package import is_a, package_of
from lightning_resume._place import MODULE, Place, call_turn, turns
from lightning_resume._results import apply_results, capture_results
from resume_core.capture.rng import apply_rng, preserved_rng

__all__ = ["END", "Rest", "capture_point"]

END = "end"
"""The point at which training has ended, before the hooks that say so."""

_VALIDATION = ("on_validation_epoch_end", "on_validation_end")
_EPOCH = ("on_train_epoch_end", END)
_NEED_NO_BATCH = ("Checkpoint", "ProgressBar")


def capture_point(trainer: Any, place: Place, before_validation: Mapping[str, Any]) -> dict[str, Any]:
    """What is needed to do the rest after ``place``.

    Args:
        trainer: the Trainer.
        place: see `find_place`.
        before_validation: RNG and ``_first_loop_iter`` as they were when the validation that is running began.
    """
    point: dict[str, Any] = {"hook": place.hook, "over": list(place.over)}
    if place.saves_last and place.saver is not None and place.saver.save_last:
        point["last"] = _path_of_last(trainer, place.saver)
    if place.hook in _VALIDATION:
        val_loop = trainer.fit_loop.epoch_loop.val_loop
        point["validation"] = {
            **before_validation,
            "results": capture_results(val_loop._results),
            "outputs": [dict(outputs) for outputs in val_loop._logged_outputs],
            "modes": dict(val_loop._module_mode.mode),
        }
    if place.hook == "on_train_batch_end":
        point["batch_size"] = trainer.fit_loop.epoch_loop._results.batch_size
        needed = any(_needs_batch(trainer, callback) for name, callback in _left(trainer, point))
        outputs, batch, batch_idx = place.arguments
        point["arguments"] = [outputs, batch, batch_idx] if needed else [None, None, batch_idx]
    return point


def _path_of_last(trainer: Any, saver: Any) -> str:
    """Where `ModelCheckpoint` is going to write its ``last.ckpt`` next."""
    metrics = saver._monitor_candidates(trainer)
    path = str(saver.format_checkpoint_name(metrics, saver.CHECKPOINT_NAME_LAST))
    version = saver.STARTING_VERSION
    while saver._enable_version_counter and saver.file_exists(path, trainer) and path != saver.last_model_path:
        path = str(saver.format_checkpoint_name(metrics, saver.CHECKPOINT_NAME_LAST, ver=version))
        version += 1
    return path


def _needs_batch(trainer: Any, callback: Any) -> bool:
    package = package_of(trainer)
    if callback is None:
        return bool(package.is_overridden("on_train_batch_end", trainer.lightning_module))
    overrides = package.is_overridden("on_train_batch_end", callback, package.Callback)
    return bool(overrides) and not is_a(callback, *_NEED_NO_BATCH)


def _left(trainer: Any, point: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return [named for named in turns(trainer, point["hook"]) if named[0] not in point["over"]]


class Rest:
    """The rest of what was interrupted by a save, to be done once.

    Args:
        trainer: the Trainer that resumes.
        point: what `capture_point` gave; ``hook`` is None between two batches.
        rng: of the moment of the save.
    """

    def __init__(self, trainer: Any, point: Mapping[str, Any], rng: Mapping[str, Any]) -> None:
        self._trainer, self._point, self._rng = trainer, point, rng
        self._fit = trainer.fit_loop
        self._epoch = self._fit.epoch_loop
        self._connector = trainer._logger_connector
        self.before_validation: Mapping[str, Any] = point.get("validation", {})

    @property
    def is_end(self) -> bool:
        """Whether training had ended."""
        return bool(self._point["hook"] == END)

    @property
    def is_after_epoch(self) -> bool:
        """Whether no batch of the epoch was left."""
        return self._point["hook"] in _EPOCH

    @property
    def training_rng(self) -> Mapping[str, Any]:
        """Training's own random state; a validation that was running has another."""
        rng: Mapping[str, Any] = self.before_validation.get("rng", self._rng)
        return rng

    # ---- tails

    def after_batch(self, fetcher: Any) -> None:
        """Go on to the end of the batch whose hooks were running, and of all that follows it."""
        hook = self._point["hook"]
        if hook == "on_train_batch_end":
            self._batch_rest()
            self._epoch.on_advance_end(fetcher)
        elif hook in _VALIDATION:
            self._validation_rest()
            self._advance_end_without_validation(fetcher)

    def _batch_rest(self) -> None:
        results = self._epoch._results
        outputs, batch, batch_idx = package_of(self._trainer).move_data_to_device(
            self._point["arguments"], self._trainer.strategy.root_device
        )
        results.batch, results.batch_size = batch, self._point["batch_size"]
        self._hook_rest((outputs, batch, batch_idx))
        self._connector.on_batch_end()
        self._epoch.batch_progress.increment_completed()
        self._connector.update_train_step_metrics()

    def _validation_rest(self) -> None:
        trainer, val_loop, saved = self._trainer, self._epoch.val_loop, self.before_validation
        trainer.validating = True
        val_loop._module_mode.mode = dict(saved["modes"])
        val_loop._has_run = True
        apply_results(val_loop._results, saved["results"], trainer.lightning_module, trainer.strategy.reduce)
        with torch.no_grad(), preserved_rng():
            apply_rng(self._rng)
            if self._point["hook"] == "on_validation_epoch_end":
                self._hook_rest(())
                self._connector.on_epoch_end()
                outputs = dict(ChainMap(*saved["outputs"]))
                outputs.update(self._connector.update_eval_epoch_metrics())
                self._connector.log_eval_end_metrics(outputs)
                val_loop._on_evaluation_end()
            else:
                self._hook_rest(())
                package_of(trainer)._call_strategy_hook(trainer, "on_validation_end")
                self._connector.reset_results()
            val_loop._on_evaluation_model_train()
        trainer._last_val_time = time.monotonic()
        trainer.training = True
        self._connector._first_loop_iter = saved["first_loop_iter"]

    def _advance_end_without_validation(self, fetcher: Any) -> None:
        self._epoch._should_check_val_fx = lambda data_fetcher: False
        try:
            self._epoch.on_advance_end(fetcher)
        finally:
            del self._epoch._should_check_val_fx

    def after_epoch(self) -> None:
        """Go on to the end of the epoch whose hooks were running."""
        if self.is_end:
            return
        self._hook_rest(())
        self._connector.on_epoch_end()
        if self._epoch._num_ready_batches_reached():
            self._epoch.update_lr_schedulers("epoch", update_plateau_schedulers=True)
        self._epoch._batches_that_stepped -= 1
        self._connector.update_train_epoch_metrics()
        self._epoch._batches_that_stepped += 1
        self._fit.epoch_progress.increment_completed()
        if self._trainer.received_sigterm:
            raise package_of(self._trainer).SIGTERMException

    def _hook_rest(self, arguments: tuple[Any, ...]) -> None:
        """The turns that were left in the hook."""
        hook = self._point["hook"]
        if "last" in self._point:
            named = dict(turns(self._trainer, hook))
            self._write_last(hook, named.get(self._point["over"][-1]), arguments)
        for name, callback in _left(self._trainer, self._point):
            if name == MODULE or callback is not None:
                call_turn(self._trainer, hook, callback, arguments)

    def _write_last(self, hook: str, saver: Any, arguments: tuple[Any, ...]) -> None:
        """The file that `ModelCheckpoint` writes after the one of the resume."""
        if is_a(saver, "ModelCheckpoint"):
            trainer, metrics = self._trainer, saver._monitor_candidates(self._trainer)
            call_turn(trainer, hook, saver, arguments, lambda: saver._save_last_checkpoint(trainer, metrics))
