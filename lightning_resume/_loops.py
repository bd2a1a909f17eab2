"""Marks of the Trainer and its loops that no Lightning checkpoint holds, and the hyper-parameters that one holds.

Internals used (Lightning 2.6): ``epoch_loop._batches_that_stepped``, ``_last_train_dl_reload_epoch`` and
``_last_val_dl_reload_epoch`` of the loops, and for validation by the clock ``trainer._val_check_time_interval`` and
``_last_val_time`` (seconds of ``time.monotonic``).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

from lightning_resume._ending import time_is_up
from lightning_resume._results import apply_connector, capture_connector

__all__ = ["apply_marks", "capture_marks", "hyper_parameters"]


def capture_marks(trainer: Any) -> dict[str, Any]:
    """Marks between two batches; strict values and live tensors."""
    fit = trainer.fit_loop
    by_clock = getattr(trainer, "_val_check_time_interval", None) is not None
    return {
        "should_stop": trainer.should_stop,
        "time_is_up": time_is_up(trainer),
        "accumulate_grad_batches": trainer.accumulate_grad_batches,
        "batches_that_stepped": fit.epoch_loop._batches_that_stepped,
        "train_reload_epoch": fit._last_train_dl_reload_epoch,
        "val_reload_epoch": fit.epoch_loop.val_loop._last_val_dl_reload_epoch,
        "since_validation_s": time.monotonic() - trainer._last_val_time if by_clock else None,
        "connector": capture_connector(trainer._logger_connector),
    }


def apply_marks(trainer: Any, saved: Mapping[str, Any], *, goes_on: bool) -> None:
    """Put back what `capture_marks` saw.

    Args:
        trainer: at the first batch that it will train on.
        saved: the marks.
        goes_on: whether training goes on although something had asked for its end.
    """
    fit = trainer.fit_loop
    # a time limit that was raised since does not stop this run
    in_time = saved["time_is_up"] and not time_is_up(trainer)
    trainer.should_stop = saved["should_stop"] and not in_time and not goes_on
    trainer.accumulate_grad_batches = saved["accumulate_grad_batches"]
    fit.epoch_loop._batches_that_stepped = saved["batches_that_stepped"]
    fit._last_train_dl_reload_epoch = saved["train_reload_epoch"]
    fit.epoch_loop.val_loop._last_val_dl_reload_epoch = saved["val_reload_epoch"]
    if saved["since_validation_s"] is not None:
        trainer._last_val_time = time.monotonic() - saved["since_validation_s"]
    apply_connector(trainer._logger_connector, saved["connector"])


def _with_hparams(trainer: Any) -> Iterator[Any]:
    yield from (owner for owner in (trainer.lightning_module, trainer.datamodule) if owner is not None)


def hyper_parameters(trainer: Any) -> dict[str, Any]:
    """Those of this run, for hooks that read them in a checkpoint."""
    return {owner.CHECKPOINT_HYPER_PARAMS_KEY: dict(owner.hparams) for owner in _with_hparams(trainer) if owner.hparams}
