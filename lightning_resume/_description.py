"""What decides a Trainer's run, as facts to compare; and the shapes of its weights, which must stay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from resume_core.capture.plain import plain
from resume_core.capture.runconfig import (
    describe_environment,
    describe_hparams,
    describe_loader,
    describe_model,
    describe_optimizers,
    describe_schedulers,
)
from resume_core.errors import UnsupportedStateError
from resume_core.state import Fact

__all__ = ["describe", "refuse_new_shapes", "shapes", "size_bytes"]

_LAZY = "not initialised"
_FACTS = ("accumulate_grad_batches", "gradient_clip_val", "gradient_clip_algorithm", "precision",
          "limit_train_batches", "overfit_batches", "reload_dataloaders_every_n_epochs")  # fmt: skip
_INFO = ("max_epochs", "max_steps", "val_check_interval", "check_val_every_n_epoch", "limit_val_batches")


def describe(trainer: Any, loaders: Sequence[Any], weights: Mapping[str, Any]) -> dict[str, Fact]:
    """Trainer arguments, loaders, optimizers, schedulers and model; see `resume_core.capture.describe`.

    Args:
        trainer: its optimizers exist, and nothing is loaded.
        loaders: those for training.
        weights: the module's ``state_dict``.
    """
    facts = {name: Fact(plain(getattr(trainer, name, None))) for name in _FACTS}
    facts |= {name: Fact(plain(getattr(trainer, name, None)), "info") for name in _INFO}
    for place, loader in enumerate(loaders):
        facts |= describe_loader(loader, prefix=f"data.{place}")
    facts |= describe_optimizers(trainer.optimizers)
    facts |= describe_schedulers([config.scheduler for config in trainer.lr_scheduler_configs])
    facts |= describe_model(weights)
    facts |= describe_hparams(dict(trainer.lightning_module.hparams))
    return facts | describe_environment()


def size_bytes(weights: Mapping[str, Any]) -> int:
    """Of the tensors in a ``state_dict``."""
    tensors = [w for w in weights.values() if isinstance(w, torch.Tensor) and not is_lazy(w)]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def shapes(weights: Mapping[str, Any]) -> dict[str, Any]:
    """Of the tensors in a ``state_dict``, by name."""
    tensors = {name: value for name, value in weights.items() if isinstance(value, torch.Tensor)}
    return {name: _LAZY if is_lazy(value) else value.shape for name, value in tensors.items()}


def refuse_new_shapes(before: Mapping[str, Any], weights: Mapping[str, Any]) -> None:
    """Refuse weights that a new process could not load.

    Raises:
        UnsupportedStateError: one has appeared, gone or changed its shape since `shapes` gave ``before``.
    """
    now = shapes(weights)
    changed = before.keys() ^ now.keys() | {name for name in before.keys() & now.keys() if before[name] != now[name]}
    # a lazy module takes its shape on loading
    changed = {name for name in changed if before.get(name) is not _LAZY}
    if changed:
        name = min(changed)
        raise UnsupportedStateError(
            f"model.{name} has appeared, gone or changed its shape since training began, so a new process could "
            "not load it; give buffers their final shape in __init__, or keep them out with persistent=False",
            path=f"model.{name}",
        )
