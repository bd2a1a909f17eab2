"""What was prepared and registered when a run was described: a new process could load nothing else."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

import torch

from accelerate_resume._accelerator import Accelerated
from resume_core.capture.weights import refuse_new_shapes, shapes
from resume_core.errors import ResumeError, UnsupportedStateError

__all__ = ["Prepared"]


class Prepared:
    """Of one run.

    Args:
        accelerated: the Accelerator.
    """

    def __init__(self, accelerated: Accelerated) -> None:
        self._accelerated = accelerated
        self._shapes: dict[str, Any] = {}
        self._counts: dict[str, int] = {}
        self._objects: list[weakref.ref[Any]] = []

    def note(self, weights: Mapping[str, torch.Tensor]) -> None:
        """The run is described: all that there is now is all that there may be."""
        self._shapes, self._counts = shapes(weights), self._accelerated.counts
        self._objects = [weakref.ref(each) for each in self._accelerated.prepared]

    @property
    def has_grown(self) -> bool:
        """Whether more was prepared or registered since."""
        return self._accelerated.counts != self._counts

    def refuse_unseen(self, parameters: Mapping[str, torch.nn.Parameter]) -> None:
        """Refuse an optimizer whose parameters are not all among those that are saved.

        Raises:
            ResumeError: names the optimizer, and what to do.
        """
        known = {id(parameter) for parameter in parameters.values()}
        for place, optimizer in enumerate(self._accelerated.optimizers):
            unseen = [p for group in optimizer.param_groups for p in group["params"] if id(p) not in known]
            if unseen:
                raise ResumeError(
                    f"optimizer {place} ({type(optimizer).__name__}) trains {len(unseen)} parameter(s) that belong to "
                    "no prepared model, so a resume would lose them: give the module to accelerator.prepare(), or to "
                    "resume.track(name=module)"
                )

    def refuse_changes(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Refuse to save what a new process could not load.

        Raises:
            UnsupportedStateError: there is more or something else than when the run began, or a shape has changed.
        """
        for kind, count in self._accelerated.counts.items():
            if count != self._counts[kind]:
                raise UnsupportedStateError(
                    f"there were {self._counts[kind]} of kind {kind} when the run began and there are {count} now, so "
                    "a new process could not load them: prepare and register everything before resume.epochs()",
                    path=kind,
                )
        if any(known() is not each for known, each in zip(self._objects, self._accelerated.prepared, strict=True)):
            raise UnsupportedStateError(
                "other models, optimizers or schedulers are prepared than when the run began, so a new process could "
                "not load them: prepare everything before resume.epochs(), and give each training a ResumePlugin",
                path="prepare",
            )
        refuse_new_shapes(self._shapes, weights)
