"""What an Accelerate script's steps show of its gradients, told to whoever records it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from accelerate_resume._accelerator import Accelerated
from resume_core.evidence import Observer

__all__ = ["Gradients"]


class Gradients:
    """Those of one run, looked at before they are clipped.

    Args:
        accelerated: the Accelerator, whose clipping is shadowed.
        observer: gives the one that is told.
    """

    def __init__(self, accelerated: Accelerated, observer: Callable[[], Observer]) -> None:
        self._accelerated, self._find_observer = accelerated, observer
        self._has_clipped = False  # since the last step: clipping has told of the norm
        accelerated.around("clip_grad_norm_", self._clip_norm)
        accelerated.around("clip_grad_value_", self._clip_value)

    @property
    def _scales(self) -> bool:
        return self._accelerated.accelerator.scaler is not None

    def _clip_norm(self, plain: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        norm = plain(*args, **kwargs)  # of the gradients before, and unscaled
        self._has_clipped = True
        self._find_observer().clipped_norm(norm, may_overflow=self._scales)
        return norm

    def _clip_value(self, plain: Callable[..., Any], parameters: Any, *args: Any, **kwargs: Any) -> Any:
        if not self._scales:  # else they are unscaled in there
            parameters, self._has_clipped = list(parameters), True
            self._find_observer().norm_of(parameters)
        return plain(parameters, *args, **kwargs)

    def before_step(self, optimizer: torch.optim.Optimizer) -> None:
        """A step is about to be made with them."""
        observer = self._find_observer()
        if observer.wants_gradients:
            # a fused optimizer unscales by itself, and finds out there what has overflown
            observer.gradients(optimizer, with_norm=not self._has_clipped, may_overflow=self._scales)

    def stepped(self) -> None:
        """It was made: others come."""
        self._has_clipped = False
