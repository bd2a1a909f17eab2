"""Gradients of a half-filled accumulation window, and anything else that waits in ``.grad``."""

from __future__ import annotations

from collections.abc import Mapping

import torch

__all__ = ["apply_gradients", "capture_gradients"]


def capture_gradients(parameters: Mapping[str, torch.nn.Parameter]) -> dict[str, torch.Tensor]:
    """The gradients that exist, by parameter name; live references."""
    return {name: parameter.grad for name, parameter in parameters.items() if parameter.grad is not None}


def apply_gradients(parameters: Mapping[str, torch.nn.Parameter], saved: Mapping[str, torch.Tensor]) -> None:
    """Give each parameter the gradient it had, and none to those that had none."""
    for name, parameter in parameters.items():
        gradient = saved.get(name)
        parameter.grad = None if gradient is None else gradient.to(parameter.device)
