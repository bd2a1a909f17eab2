"""Which weights a checkpoint may be read straight into, without a dict that hooks could look at or change first."""

from __future__ import annotations

from typing import Any

import torch

from lightning_resume._package import is_a, package_of
from resume_core.capture.modules import plainly_loaded

__all__ = ["live_weights"]


def live_weights(trainer: Any) -> dict[str, torch.Tensor]:
    """Parameters and buffers by their names in the module's ``state_dict``; none where something wants to see that.

    That is a hook of the module or of a callback that is given the checkpoint (Lightning gives it to none of the data),
    a strategy or a module that loads in its own way, and callbacks that keep other weights beside these.
    """
    package, module, strategy = package_of(trainer), trainer.lightning_module, trainer.strategy
    is_looked_at = (
        any(package.is_overridden("on_load_checkpoint", owner) for owner in (module, *trainer.callbacks))
        or any(is_a(callback, "StochasticWeightAveraging", "WeightAveraging") for callback in trainer.callbacks)
        or package.is_overridden("load_model_state_dict", strategy, package.Strategy)
        or package.is_overridden("load_state_dict", module, torch.nn.Module)
        or not module.strict_loading
    )
    return {} if is_looked_at else plainly_loaded(module)
