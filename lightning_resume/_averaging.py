"""Callbacks that average weights: what they keep besides their ``state_dict``, and where they step in.

Internals used (Lightning 2.6): ``_average_model`` of `WeightAveraging` and `StochasticWeightAveraging`; of the latter
also ``_initialized``, ``_max_epochs``, ``_accumulate_grad_batches``, ``momenta`` and ``swa_end``, and of the fit loop
``max_epochs``, ``max_batches`` and ``_skip_backward``. It puts a scheduler of its own in place, and prepares its last
epoch, which only brings the statistics of batch norms up to date, in ``on_train_epoch_start``: Lightning does not call
that hook again when a run goes on in the middle of an epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from lightning_resume._package import is_a
from resume_core.capture.modules import apply_modules, capture_modules

__all__ = ["WEIGHTS_BESIDE_THE_AVERAGE", "apply_averaging", "capture_averaging", "max_epochs", "take_back_last_epoch"]

WEIGHTS_BESIDE_THE_AVERAGE = "current_model_state"  # where `WeightAveraging` puts what is trained, in a checkpoint


def _averaging(trainer: Any) -> list[Any]:
    return [
        callback for callback in trainer.callbacks if is_a(callback, "StochasticWeightAveraging", "WeightAveraging")
    ]


def _adds_epoch(callback: Any, trainer: Any) -> bool:
    return is_a(callback, "StochasticWeightAveraging") and callback.pl_module_contains_batch_norm(
        trainer.lightning_module
    )


def _has_added(callback: Any, trainer: Any) -> bool:
    """Whether the epoch that the callback adds is counted in the Trainer's limit: from ``on_fit_start`` to its end."""
    known: int | None = getattr(callback, "_max_epochs", None)
    return known is not None and trainer.fit_loop.max_epochs == known + 1


def max_epochs(trainer: Any) -> int | None:
    """The number of epochs that a fit trains, with the one that averaging adds for batch norms; -1 without a limit."""
    limit: int | None = trainer.fit_loop.max_epochs
    adding = [callback for callback in _averaging(trainer) if _adds_epoch(callback, trainer)]
    if limit is None or limit == -1 or not adding or _has_added(adding[0], trainer):
        return limit
    return limit + 1


def take_back_last_epoch(trainer: Any) -> None:
    """After a fit that trained nothing, whose callbacks were not told of its end: what one had added to the limit."""
    for callback in _averaging(trainer):
        if _adds_epoch(callback, trainer) and _has_added(callback, trainer):
            trainer.fit_loop.max_epochs -= 1


def capture_averaging(trainer: Any) -> list[dict[str, Any]]:
    """What each averaging callback of ``trainer`` has and does not save itself; tensors are live."""
    return [_capture(callback, trainer) for callback in _averaging(trainer)]


def _capture(callback: Any, trainer: Any) -> dict[str, Any]:
    average = callback._average_model
    state: dict[str, Any] = {"model": None if average is None else capture_modules(average)}
    if is_a(callback, "StochasticWeightAveraging"):
        in_last = trainer.fit_loop._skip_backward
        state |= {
            "initialized": callback._initialized,
            "batch_norm": _capture_batch_norm(callback, trainer.lightning_module) if in_last else None,
        }
    return state


def _capture_batch_norm(callback: Any, module: torch.nn.Module) -> dict[str, Any]:
    momenta = callback.momenta
    return {
        "accumulate_grad_batches": callback._accumulate_grad_batches,
        "momenta": [[name, momenta[child]] for name, child in module.named_modules() if child in momenta],
    }


def apply_averaging(trainer: Any, saved: list[dict[str, Any]]) -> None:
    """Put back what `capture_averaging` saw, once callbacks and optimizers are restored and the epoch is set up."""
    for callback, state in zip(_averaging(trainer), saved, strict=False):
        if callback._average_model is not None and state["model"] is not None:
            apply_modules(callback._average_model, state["model"])
        if state.get("initialized"):
            _step_in(callback, trainer)
        if state.get("batch_norm"):
            _enter_last_epoch(callback, trainer, state["batch_norm"])


def _step_in(callback: Any, trainer: Any) -> None:
    """Let the callback put its scheduler in place, as it did in an epoch up to the one that is resumed."""
    progress = trainer.fit_loop.epoch_progress.current
    epoch, settings = progress.completed, [_settings(group) for group in trainer.optimizers[0].param_groups]
    progress.completed = min(epoch, callback.swa_end)  # beyond, the hook would begin the last epoch anew
    try:
        callback.on_train_epoch_start(trainer, trainer.lightning_module)
    finally:
        progress.completed = epoch
    # a scheduler takes a step when it is made; with older releases of torch this one moves the learning rate by it
    for group, values in zip(trainer.optimizers[0].param_groups, settings, strict=True):
        group.update(values)


def _settings(group: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: value.clone() if isinstance(value, torch.Tensor) else value
        for name, value in group.items()
        if name != "params"
    }


def _enter_last_epoch(callback: Any, trainer: Any, saved: Mapping[str, Any]) -> None:
    """What the callback did before the first batch of its epoch for batch norms, but for the weights."""
    trainer.fit_loop.max_batches += 1
    trainer.fit_loop._skip_backward = True
    callback._accumulate_grad_batches = saved["accumulate_grad_batches"]
    callback.momenta = {}
    for name, momentum in saved["momenta"]:
        child = trainer.lightning_module.get_submodule(name)
        callback.momenta[child], child.momentum = momentum, None
