"""Optimizer state placed exactly as it was saved."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

__all__ = ["place_optimizer_state"]


def place_optimizer_state(optimizer: torch.optim.Optimizer, saved: Mapping[str, Any]) -> None:
    """Undo the casts of ``Optimizer.load_state_dict``.

    It brings floating-point state to the dtype of its parameter (fp32 moments of bf16 parameters lose 16 bits) and
    keeps whatever strides that copy has. Here each tensor that came out with another dtype or other strides than it
    was saved with is replaced by the saved one, on the device that was chosen for it.

    Args:
        optimizer: after ``load_state_dict(saved)``.
        saved: as ``Optimizer.state_dict`` gave it: state by position of the parameter over all groups.
    """
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for place, values in saved.get("state", {}).items():
        current = optimizer.state.get(parameters[int(place)]) if int(place) < len(parameters) else None
        if current is None:
            continue
        for name, value in values.items():
            if name in current:
                current[name] = _placed(current[name], value)


def _placed(current: Any, saved: Any) -> Any:
    """``current`` with each tensor that is not like the saved one replaced by that; values may be nested."""
    if isinstance(saved, torch.Tensor) and isinstance(current, torch.Tensor):
        return current if _alike(current, saved) else _copy(saved).to(current.device)
    if isinstance(saved, Mapping) and isinstance(current, dict):
        return {name: _placed(value, saved[name]) if name in saved else value for name, value in current.items()}
    if type(saved) in (list, tuple) and type(saved) is type(current) and len(saved) == len(current):
        return type(saved)(_placed(one, other) for one, other in zip(current, saved, strict=True))
    return current


def _copy(saved: torch.Tensor) -> torch.Tensor:
    return saved.detach().clone(memory_format=torch.preserve_format)


def _alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.dtype == other.dtype and one.stride() == other.stride()
