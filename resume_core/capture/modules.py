"""What a `torch.nn.Module` keeps outside its ``state_dict``, and metrics that are modules."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

import torch

__all__ = ["apply_modules", "capture_modules"]

_METRIC_FIELDS = ("_update_count", "_computed", "_forward_cache")


def _hidden_buffers(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Buffers that were registered with ``persistent=False``."""
    for prefix, child in module.named_modules():
        for name in child._non_persistent_buffers_set:
            buffer = child._buffers.get(name)
            if buffer is not None:
                yield f"{prefix}.{name}" if prefix else name, buffer


def _metrics(module: torch.nn.Module) -> Iterator[tuple[str, Any]]:
    torchmetrics = sys.modules.get("torchmetrics")  # not imported: then no metric of it can exist
    if torchmetrics is not None:
        yield from ((name, child) for name, child in module.named_modules() if isinstance(child, torchmetrics.Metric))


def _capture_metric(metric: Any) -> dict[str, Any]:
    # list states are copied shallowly: the metric appends to the list itself between two steps
    values = {name: getattr(metric, name) for name in metric._defaults}
    states = {name: list(value) if isinstance(value, list) else value for name, value in values.items()}
    return {"states": states, "fields": {name: getattr(metric, name) for name in _METRIC_FIELDS}}


def _apply_metric(metric: Any, saved: Mapping[str, Any]) -> None:
    for name, value in saved["states"].items():
        setattr(metric, name, value)
    for name, value in saved["fields"].items():
        setattr(metric, name, value)
    metric.to(metric.device)


def capture_modules(module: torch.nn.Module) -> dict[str, Any]:
    """Non-persistent buffers, metric states, train/eval modes and frozen parameters: live references.

    Modes and ``requires_grad`` belong here because hooks that set them at an epoch's start do not run again when a
    run goes on in the middle of the epoch.
    """
    return {
        "buffers": dict(_hidden_buffers(module)),
        "metrics": {name: _capture_metric(metric) for name, metric in _metrics(module)},
        "eval": [name for name, child in module.named_modules() if not child.training],
        "frozen": [name for name, parameter in module.named_parameters() if not parameter.requires_grad],
    }


def apply_modules(module: torch.nn.Module, saved: Mapping[str, Any]) -> None:
    """Put back what `capture_modules` saw; modules that are gone are passed over."""
    for name, buffer in _hidden_buffers(module):
        if name in saved["buffers"]:
            buffer.copy_(saved["buffers"][name])
    for name, metric in _metrics(module):
        if name in saved["metrics"]:
            _apply_metric(metric, saved["metrics"][name])
    in_eval, frozen = set(saved["eval"]), set(saved["frozen"])
    for name, child in module.named_modules():
        child.training = name not in in_eval
    for name, parameter in module.named_parameters():
        if parameter.requires_grad == (name in frozen):
            parameter.requires_grad_(name not in frozen)
