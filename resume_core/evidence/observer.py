"""What training does between two boundaries, as a plugin tells of it."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable
from typing import Any

import torch

from resume_core.evidence.prints import norms_of, print_inputs

__all__ = ["Observer"]

_MAX_WAITING = 1024  # of each kind, between two boundaries


class Observer:
    """Takes note of batches, losses and gradients. As long as nobody listens, a call costs next to nothing.

    What goes wrong in here is no business of the training: it is said once, and nothing is observed any more.

    Args:
        log: where that is said.
    """

    def __init__(self, log: logging.Logger | None = None) -> None:
        self._log = log or logging.getLogger("exact_resume")
        self._is_broken = False
        self.listens = False
        """Whether losses are wanted."""
        self.records = False
        """Whether inputs and steps are wanted too."""
        self.wants_norms = False
        """Whether norms of gradients are."""
        self.is_urgent = False
        """Whether a loss was no finite number, which is to be told of at once."""
        self.first: Callable[[], None] | None = None
        """Called once, before the next batch is trained on."""
        self.inputs: list[list[Any]] = []
        self.losses: list[Any] = []
        self.lrs: list[float] = []
        self.grad_norms: list[Any] = []

    def batch(self, batch: Any) -> None:
        """A batch is about to be trained on, as training gets it."""
        self.before_first()
        if self.records and len(self.inputs) < _MAX_WAITING:
            self.guarded(lambda: self.inputs.append(list(print_inputs(batch))))

    def before_first(self) -> None:
        """Nothing was trained in this process yet."""
        if self.first is not None:
            first, self.first = self.first, None
            self.guarded(first)

    def loss(self, loss: Any, num_parts: int = 1) -> None:
        """That of a backward pass.

        Args:
            loss: a tensor, a number, or None where there is none.
            num_parts: what the framework has divided it by, as the passes of an accumulation window are summed up.
        """
        if not self.listens or loss is None or len(self.losses) >= _MAX_WAITING:
            return
        try:  # as `guarded` does, in less time: this is called at each step
            number = _one_number(loss)
            if num_parts != 1:
                number = number * num_parts
            self.losses.append(number)
            if type(number) is float and not -math.inf < number < math.inf:
                self.is_urgent = True
        except Exception as error:
            self.give_up(error)

    def gradients(
        self, optimizer: torch.optim.Optimizer, *, with_norm: bool = True, may_overflow: bool = False
    ) -> None:
        """An optimizer is about to step, or its gradients to be clipped.

        Args:
            optimizer: torch's own.
            with_norm: whether their norm was not told of before, by `clipped_norm` or `norm_of`.
            may_overflow: whether gradients that are not finite are what a `torch.amp.GradScaler` is there for.
        """
        if not self.wants_gradients:
            return
        if self.records:
            self.guarded(lambda: self._note_rates(optimizer))
        if with_norm:
            self.norm_of((p for group in optimizer.param_groups for p in group["params"]), may_overflow=may_overflow)

    def clipped_norm(self, norm: Any, *, may_overflow: bool = False) -> None:
        """Gradients were clipped that had this norm before; see `gradients`."""
        if self.wants_gradients and norm is not None:
            self.guarded(lambda: self._keep_norm(float(norm), may_overflow=may_overflow))

    def norm_of(self, parameters: Iterable[torch.Tensor], *, may_overflow: bool = False) -> None:
        """Note the norm of the gradients of these, over all of them."""
        if self.wants_gradients:
            self.guarded(
                lambda: self._note_norm([p.grad for p in parameters if p.grad is not None], may_overflow=may_overflow)
            )

    @property
    def wants_gradients(self) -> bool:
        """Whether there is a reason to call what tells of them."""
        return self.records or self.wants_norms

    def _note_rates(self, optimizer: torch.optim.Optimizer) -> None:
        self.lrs += [float(group["lr"]) for group in optimizer.param_groups if "lr" in group]

    def _note_norm(self, gradients: list[torch.Tensor], *, may_overflow: bool) -> None:
        dense = [grad.coalesce().values() if grad.is_sparse else grad for grad in gradients]
        norms = norms_of([grad.detach() for grad in dense])
        if norms:
            self._keep_norm(math.sqrt(sum(value * value for value in norms)), may_overflow=may_overflow)

    def _keep_norm(self, norm: float, *, may_overflow: bool) -> None:
        if len(self.grad_norms) < _MAX_WAITING and (math.isfinite(norm) or not may_overflow):
            self.grad_norms.append(norm)

    def take(self) -> tuple[list[list[Any]], list[Any], list[float], list[float]]:
        """Inputs, losses, learning rates and norms since the last call."""
        found = self.inputs, self.losses, self.lrs, self.grad_norms
        self.inputs, self.losses, self.lrs, self.grad_norms = [], [], [], []
        return found

    def take_losses(self) -> list[Any]:
        """Those since the last call, where nothing else is wanted."""
        found, self.losses = self.losses, []
        return found

    def guarded(self, call: Callable[[], Any]) -> None:
        """Call it, unless something has gone wrong before."""
        if self._is_broken:
            return
        try:
            call()
        except Exception as error:  # of whatever kind: training goes on without evidence
            self.give_up(error)

    def close(self) -> None:
        """The run is over: what a script does behind it is no business of this one."""
        self.listens = self.records = self.wants_norms = False
        self.first = None
        self.take()

    def give_up(self, error: Exception) -> None:
        """Observe nothing any more."""
        self._is_broken = True
        self.close()
        self._log.warning(
            "evidence is given up for this attempt, and training goes on without: %s: %s", type(error).__name__, error
        )

    @property
    def is_broken(self) -> bool:
        """Whether something has gone wrong."""
        return self._is_broken


def _one_number(loss: Any) -> Any:
    """A float, or, where that would wait for a GPU, a tensor of its own that holds it."""
    if not isinstance(loss, torch.Tensor):
        return float(loss)
    if loss.ndim and loss.numel() != 1:
        loss = loss.detach().float().mean()
    return loss.item() if loss.is_cpu else loss.detach().clone()
