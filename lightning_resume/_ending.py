"""What ends a Trainer's fit, and whether it has.

Internals used (Lightning 2.6): ``trainer.val_check_batch``, ``fit_loop._can_stop_early``,
``epoch_loop._num_ready_batches_reached`` and the counters of both loops (the conditions are those of ``fit_loop.done``
and ``epoch_loop.done``), and ``_Loop.on_iteration_done``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from lightning_resume._averaging import max_epochs
from lightning_resume._package import package_of
from resume_core.state import Ending

__all__ = ["clear_restart", "ending", "is_last", "limits", "time_is_up", "validates_next"]


def _timers(trainer: Any) -> Iterator[Any]:
    kind = package_of(trainer).Timer
    for callback in trainer.callbacks:
        if isinstance(callback, kind) and callback.time_remaining() is not None:
            yield callback


def time_is_up(trainer: Any) -> bool:
    """Whether a time limit was reached."""
    return any((timer.time_remaining() or 0) <= 0 for timer in _timers(trainer))


def limits(trainer: Any) -> dict[str, float]:
    """The limits that are set."""
    fit = trainer.fit_loop
    found = {"max_epochs": max_epochs(trainer), "max_steps": fit.max_steps}
    seconds = [(timer.time_remaining() or 0) + timer.time_elapsed() for timer in _timers(trainer)]
    found["max_time"] = min(seconds, default=None)
    return {name: value for name, value in found.items() if value is not None and value != -1}


def _reached(trainer: Any) -> dict[str, float]:
    elapsed = [timer.time_elapsed() for timer in _timers(trainer)]
    fit = trainer.fit_loop
    # Lightning counts an epoch that was left in its middle as processed, too
    epochs = int(fit.epoch_progress.current.processed) - (not fit.epoch_loop._num_ready_batches_reached())
    return {"max_epochs": epochs, "max_steps": int(trainer.global_step), "max_time": max(elapsed, default=0.0)}


def ending(trainer: Any) -> Ending:
    """How a fit ended, when it has."""
    reached, known = _reached(trainer), limits(trainer)
    if trainer.should_stop and trainer.fit_loop._can_stop_early:
        return Ending("max_time" if time_is_up(trainer) else "stop", reached)
    over = [name for name, limit in known.items() if reached[name] >= limit]
    return Ending(over[0] if over else "stop", reached)


def is_last(trainer: Any, step: int, *, ends_epoch: bool) -> bool:
    """After a batch: whether none will follow, as far as that can be known before the hooks at an epoch's end.

    Args:
        trainer: behind that batch.
        step: its ``global_step``.
        ends_epoch: whether the batch was the last one of its epoch.
    """
    fit = trainer.fit_loop
    if (trainer.should_stop and fit._can_stop_early) or _is_reached(step, fit.max_steps):
        return True
    return bool(ends_epoch and _is_reached(fit.epoch_progress.current.processed + 1, fit.max_epochs))


def _is_reached(value: int, limit: int | None) -> bool:
    return limit is not None and limit != -1 and value >= limit


def clear_restart(loop: Any) -> None:
    """Let a loop and those in it know nothing of having been loaded, as at the end of any fit."""
    loop.on_iteration_done()
    for inner in vars(loop).values():
        if isinstance(inner, package_of(loop)._Loop):
            clear_restart(inner)


def validates_next(trainer: Any) -> bool:
    """At a boundary: whether a validation follows the next batch, as far as counts tell (not for those by time)."""
    batches, every = trainer.val_check_batch, trainer.check_val_every_n_epoch
    if not trainer.enable_validation or not batches or math.isinf(batches):
        return False
    epoch_loop = trainer.fit_loop.epoch_loop
    ends = epoch_loop._num_ready_batches_reached()
    if every is None:
        return bool((epoch_loop.total_batch_idx + 2) % batches == 0)
    number = 1 if ends else int(epoch_loop.batch_progress.current.completed) + 1
    return bool(number % batches == 0 and (trainer.current_epoch + ends + 1) % every == 0)
