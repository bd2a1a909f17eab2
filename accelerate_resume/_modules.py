"""The modules of an Accelerate run, and their tensors by the names that they have in a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from accelerate_resume._accelerator import Accelerated
from resume_core.capture.modules import plainly_loaded
from resume_core.capture.weights import versioned

__all__ = ["Modules"]


class Modules:
    """Those of one run.

    Args:
        accelerated: the Accelerator, with its models and what is registered.
        tracked: objects that the script has saved beside them, by name; may grow.
    """

    def __init__(self, accelerated: Accelerated, tracked: Mapping[str, Any]) -> None:
        self._accelerated, self._tracked = accelerated, tracked

    @property
    def by_name(self) -> dict[str, torch.nn.Module]:
        """All that a step may change: prepared models, and modules that are tracked or registered."""
        others = {f"tracked.{name}": value for name, value in self._tracked.items()}
        others |= {f"registered.{place}": value for place, value in enumerate(self._accelerated.registered)}
        models = {f"model{prefix.rstrip('.')}": module for prefix, module in self._accelerated.models.items()}
        return models | {name: value for name, value in others.items() if isinstance(value, torch.nn.Module)}

    @property
    def parameters(self) -> dict[str, torch.nn.Parameter]:
        """Those of all modules."""
        modules = self.by_name.items()
        return {f"{prefix}.{name}": found for prefix, module in modules for name, found in module.named_parameters()}

    def weights(self) -> dict[str, torch.Tensor]:
        """What the models' ``state_dict`` hold."""
        return {
            prefix + name: tensor
            for prefix, module in self._accelerated.models.items()
            for name, tensor in module.state_dict().items()
        }

    def live_weights(self) -> dict[str, torch.Tensor]:
        """Those of `weights` that nothing but `load` would load."""
        plain = torch.nn.Module.load_state_dict
        models = {k: module for k, module in self._accelerated.models.items() if type(module).load_state_dict is plain}
        return {
            prefix + name: tensor
            for prefix, module in models.items()
            for name, tensor in plainly_loaded(module).items()
        }

    def load(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Load what `weights` gave into the models."""
        for prefix, module in self._accelerated.models.items():
            own = {name[len(prefix) :]: value for name, value in weights.items() if name.startswith(prefix)}
            module.load_state_dict(versioned(module, own))
