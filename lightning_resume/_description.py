"""What decides a Trainer's run, as facts to compare."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from resume_core.capture.describe import describe_model, describe_optimizers, describe_schedulers
from resume_core.capture.describe_data import describe_loader, global_batches
from resume_core.capture.describe_settings import describe_hparams, describe_modules
from resume_core.capture.environment import describe_environment
from resume_core.capture.plain import plain
from resume_core.state import Fact

__all__ = ["describe"]

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
    facts |= global_batches(facts, trainer.world_size * trainer.accumulate_grad_batches)
    facts |= describe_modules({"": trainer.lightning_module})
    facts |= describe_hparams(dict(trainer.lightning_module.hparams))
    facts |= describe_hparams(dict(getattr(trainer.datamodule, "hparams", {})), "data_hparams")
    return facts | describe_environment()
