"""What decides an Accelerator's run, as facts to compare."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from accelerate_resume._accelerator import Accelerated
from resume_core.capture.describe import describe_model, describe_optimizers, describe_schedulers
from resume_core.capture.describe_data import global_batches
from resume_core.capture.describe_settings import describe_hparams, describe_modules
from resume_core.capture.environment import describe_environment
from resume_core.state import Fact

__all__ = ["describe"]


def describe(
    accelerated: Accelerated, loaders: Mapping[str, Fact], hparams: Mapping[str, Any], weights: Mapping[str, Any]
) -> dict[str, Fact]:
    """The Accelerator's arguments, loaders, optimizers, schedulers and models; see `resume_core.capture.describe`.

    Args:
        accelerated: everything is prepared, and nothing loaded.
        loaders: what was found of each before it was prepared.
        hparams: that trackers were told of.
        weights: the models' ``state_dict``.
    """
    num_readers = 1 if accelerated.splits_batches else accelerated.accelerator.num_processes
    facts = {**accelerated.describe(), **loaders, **global_batches(loaders, accelerated.num_windows * num_readers)}
    facts |= describe_optimizers(accelerated.optimizers) | describe_schedulers(accelerated.schedulers)
    facts["registered"] = Fact(len(accelerated.registered), "structure")
    facts |= describe_modules(accelerated.models) | describe_hparams(hparams)
    return facts | describe_model(weights) | describe_environment()
