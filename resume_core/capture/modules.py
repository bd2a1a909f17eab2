"""What a `torch.nn.Module` keeps outside its ``state_dict``, and metrics that are modules."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

__all__ = ["apply_modules", "capture_modules", "plainly_loaded", "refilled"]

# of wrappers too: Running counts what it saw, MinMaxMetric keeps its extremes in plain attributes
_METRIC_FIELDS = ("_update_count", "_computed", "_forward_cache", "_num_vals_seen", "min_val", "max_val")


def _hidden_buffers(module: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module, str]]:
    """Buffers that were registered with ``persistent=False``: full name, owner, name there."""
    for prefix, child in module.named_modules():
        for name in sorted(child._non_persistent_buffers_set):
            yield f"{prefix}.{name}" if prefix else name, child, name


def plainly_loaded(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Live parameters and buffers by their names in ``state_dict``, of modules that ``load_state_dict`` copies as is.

    Left out with all below it is a module that has hooks for loading or a ``_load_from_state_dict`` of its own: that
    may look at values, change them or put them elsewhere.
    """
    if torch.__future__.get_swap_module_params_on_conversion():
        return {}  # then loading makes new tensors
    return dict(_plainly_loaded(module, ""))


def _plainly_loaded(module: torch.nn.Module, prefix: str) -> Iterator[tuple[str, torch.Tensor]]:
    if not _loads_plainly(module):
        return
    hidden = module._non_persistent_buffers_set
    for name, tensor in (*module._parameters.items(), *module._buffers.items()):
        if tensor is not None and name not in hidden:
            yield prefix + name, tensor
    for name, child in module._modules.items():
        if child is not None:
            yield from _plainly_loaded(child, f"{prefix}{name}.")


def _loads_plainly(module: torch.nn.Module) -> bool:
    loader = getattr(module._load_from_state_dict, "__module__", None) or ""
    return (
        loader.startswith("torch.nn.modules.")  # batch norm has one, for files without its counter
        and not module._load_state_dict_pre_hooks
        and not module._load_state_dict_post_hooks
        and not isinstance(module, torch.jit.ScriptModule)
    )


@contextmanager
def refilled(modules: Iterable[object]) -> Iterator[None]:
    """A block in which ``load_state_dict`` fills buffers that were made with ``expand``, which torch alone refuses.

    Args:
        modules: those that are loaded; what is no module is passed over.
    """
    children = [child for module in modules if isinstance(module, torch.nn.Module) for child in module.modules()]
    expanded = [(child, name, buffer) for child in children for name, buffer in child._buffers.items()
                if buffer is not None and _expanded_dims(buffer)]  # fmt: skip
    for child, name, buffer in expanded:
        child._buffers[name] = buffer.clone()
    try:
        yield
    finally:
        for child, name, buffer in expanded:
            loaded, child._buffers[name] = child._buffers[name], buffer
            if loaded is not None:
                _fill(buffer, loaded)


def _expanded_dims(tensor: torch.Tensor) -> list[int]:
    """Dimensions along which all values are one in memory."""
    if tensor.layout is not torch.strided:
        return []
    return [dim for dim in range(tensor.dim()) if tensor.stride(dim) == 0 and tensor.size(dim) > 1]


def _fill(target: torch.Tensor, source: torch.Tensor) -> None:
    """Copy values that were read from a tensor like ``target``, which stays the view that it is."""
    for dim in _expanded_dims(target):
        target, source = target.narrow(dim, 0, 1), source.narrow(dim, 0, 1)
    with torch.no_grad():
        target.copy_(source)


def _of_torchmetrics(module: torch.nn.Module, kind: str) -> Iterator[tuple[str, Any]]:
    torchmetrics = sys.modules.get("torchmetrics")  # not imported: then none of its objects can exist
    cls = getattr(torchmetrics, kind, None)
    if cls is not None:
        yield from ((name, child) for name, child in module.named_modules() if isinstance(child, cls))


def _capture_metric(metric: Any) -> dict[str, Any]:
    # list states are copied shallowly: the metric appends to the list itself between two steps
    values = {name: getattr(metric, name) for name in metric._defaults}
    states = {name: list(value) if isinstance(value, list) else value for name, value in values.items()}
    fields = {name: metric.__dict__[name] for name in _METRIC_FIELDS if name in metric.__dict__}
    return {"states": states, "fields": fields}


def _apply_metric(metric: Any, saved: Mapping[str, Any]) -> None:
    for name, value in saved["states"].items():
        setattr(metric, name, _own(value))
    for name, value in saved["fields"].items():
        setattr(metric, name, value)
    metric.to(metric.device)


def _own(value: Any) -> Any:
    """A copy: metrics of one compute group were saved as one tensor, and each updates its state in place."""
    if isinstance(value, list):
        return [_own(item) for item in value]
    return value.clone() if isinstance(value, torch.Tensor) else value


def _capture_groups(collection: Any) -> dict[str, Any]:
    return {"groups": dict(collection._groups), "checked": collection._groups_checked}


def _apply_groups(collection: Any, saved: Mapping[str, Any]) -> None:
    names = [
        sorted(name for group in groups.values() for name in group) for groups in (saved["groups"], collection._groups)
    ]
    if names[0] == names[1]:
        collection._groups, collection._groups_checked = dict(saved["groups"]), saved["checked"]
        collection._state_is_copy = False
        if saved["checked"]:
            collection._compute_groups_create_state_ref()


def capture_modules(module: torch.nn.Module) -> dict[str, Any]:
    """Non-persistent buffers, metric states, train/eval modes and frozen parameters: live references.

    Modes and ``requires_grad`` belong here because hooks that set them at an epoch's start do not run again when a
    run goes on in the middle of the epoch.
    """
    return {
        "buffers": {full: owner._buffers.get(name) for full, owner, name in _hidden_buffers(module)},
        "trackers": {name: tracker.n_steps for name, tracker in _of_torchmetrics(module, "MetricTracker")},
        "metrics": {name: _capture_metric(metric) for name, metric in _of_torchmetrics(module, "Metric")},
        "groups": {name: _capture_groups(found) for name, found in _of_torchmetrics(module, "MetricCollection")},
        "eval": [name for name, child in module.named_modules() if not child.training],
        "frozen": [name for name, parameter in module.named_parameters() if not parameter.requires_grad],
    }


def apply_modules(module: torch.nn.Module, saved: Mapping[str, Any]) -> None:
    """Put back what `capture_modules` saw; modules that are gone are passed over."""
    for full, owner, name in _hidden_buffers(module):
        if full in saved["buffers"]:
            _apply_buffer(owner, name, saved["buffers"][full])
    for name, tracker in _of_torchmetrics(module, "MetricTracker"):
        for _ in range(saved["trackers"].get(name, 0) - tracker.n_steps):
            tracker.increment()
    for name, metric in _of_torchmetrics(module, "Metric"):
        if name in saved["metrics"]:
            _apply_metric(metric, saved["metrics"][name])
    for name, collection in _of_torchmetrics(module, "MetricCollection"):
        if name in saved["groups"]:
            _apply_groups(collection, saved["groups"][name])
    in_eval, frozen = set(saved["eval"]), set(saved["frozen"])
    for name, child in module.named_modules():
        child.training = name not in in_eval
    for name, parameter in module.named_parameters():
        if parameter.requires_grad == (name in frozen):
            parameter.requires_grad_(name not in frozen)


def _apply_buffer(owner: torch.nn.Module, name: str, saved: torch.Tensor | None) -> None:
    current = owner._buffers.get(name)
    if current is not None and saved is not None and (current.shape, current.dtype) == (saved.shape, saved.dtype):
        _fill(current, saved)
        return
    # made, grown or dropped during training
    near = next((value for value in (current, *owner.parameters()) if value is not None), saved)
    owner._buffers[name] = saved if saved is None or near is None else saved.clone().to(near.device)
