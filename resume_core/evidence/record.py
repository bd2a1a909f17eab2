"""What is noted of one batch that was trained on, and of the step behind it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

__all__ = ["Record", "as_json", "as_number"]


def as_json(value: float) -> float | str:
    """A number as strict JSON: what is not finite is text, which ``float`` reads."""
    return value if math.isfinite(value) else str(value)


def as_number(value: Any) -> float:
    """What `as_json` was given."""
    return float(value)


@dataclass
class Record:
    """One batch, and the optimizer step that followed it, if one did.

    Attributes:
        step: optimizer steps done over the run, this one included.
        batch: micro-batches trained on over the run, this one included.
        epoch: from 0.
        samples: see `resume_core.state.Vitals`.
        inputs: digest and norm of each batch that loaders gave for it; see `prints`.
        losses: in the order of the backward passes.
        rng: digest of the global generators behind it.
        lrs: of each parameter group of each optimizer that stepped, as the step found them.
        grad_norms: of the gradients of each of those steps, before clipping.
        scale: of the loss, None where it is not scaled.
        weights: digest of a sample of every parameter, where a step was done.
        sizes: norm of every parameter and that sample, behind the last of the steps that are recorded.
    """

    step: int
    batch: int
    epoch: int
    samples: list[Any] = field(default_factory=list)
    inputs: list[list[Any]] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    rng: str = ""
    lrs: list[float] = field(default_factory=list)
    grad_norms: list[float] = field(default_factory=list)
    scale: float | None = None
    weights: str | None = None
    sizes: dict[str, str] | None = None

    def as_dict(self) -> dict[str, Any]:
        """Strict JSON."""
        found = dict(vars(self))  # nothing in it is changed later
        found["inputs"] = [[digest, as_json(norm)] for digest, norm in self.inputs]
        for name in ("losses", "lrs", "grad_norms"):
            found[name] = [as_json(value) for value in found[name]]
        found["scale"] = None if self.scale is None else as_json(self.scale)
        return found

    @classmethod
    def from_dict(cls, found: Any) -> Record:
        """What `as_dict` gave; names that a later release adds are passed over.

        Raises:
            TypeError: it is none.
            ValueError: likewise.
            KeyError: likewise.
        """
        known = {field.name for field in fields(cls)}
        values = {name: value for name, value in dict(found).items() if name in known}
        one = cls(**values | {name: int(values[name]) for name in ("step", "batch", "epoch")})
        one.inputs = [[str(digest), as_number(norm)] for digest, norm in one.inputs]
        one.losses, one.lrs, one.grad_norms = map(_numbers, (one.losses, one.lrs, one.grad_norms))
        one.scale = None if one.scale is None else as_number(one.scale)
        one.sizes = None if one.sizes is None else {str(name): str(text) for name, text in one.sizes.items()}
        if not all(isinstance(sample, Mapping) for sample in one.samples):
            raise TypeError("samples are no objects")
        return one


def _numbers(values: Iterable[Any]) -> list[float]:
    return [as_number(value) for value in values]
