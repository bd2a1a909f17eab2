"""Running results of an epoch: what ``self.log`` has accumulated and no Lightning checkpoint holds.

Internals used (Lightning 2.6): ``_ResultCollection``, ``_ResultMetric``, ``_Metadata`` and ``_Sync``
(trainer/connectors/logger_connector/result.py) and the private fields of ``_LoggerConnector``. Without them an
epoch-averaged metric starts from zero after a resume, and a ReduceLROnPlateau on it steps at other epochs.
"""

from __future__ import annotations

import builtins
from collections.abc import Mapping
from typing import Any

import torch

from lightning_resume._package import Package, package_of

__all__ = ["apply_connector", "apply_results", "capture_connector", "capture_results"]

_META = (
    "fx",
    "name",
    "prog_bar",
    "logger",
    "on_step",
    "on_epoch",
    "enable_graph",
    "add_dataloader_idx",
    "dataloader_idx",
    "metric_attribute",
)
_CONNECTOR = ("_callback_metrics", "_logged_metrics", "_progress_bar_metrics", "_first_loop_iter", "_current_fx")


def _capture_result(result: Any) -> dict[str, Any]:
    meta, sync = result.meta, result.meta.sync
    state = {
        "meta": {name: getattr(meta, name) for name in _META},
        "reduce_fx": meta.reduce_fx.__name__,
        "builtin": getattr(builtins, meta.reduce_fx.__name__, None) is meta.reduce_fx,  # sum, min and max pass as well
        "sync": [sync.should, sync.rank_zero_only, sync.op],
        "is_tensor": result.is_tensor,
        "has_reset": result.has_reset,
        "update_count": result._update_count,
        "forward_cache": result._forward_cache,
        "computed": result._computed,
    }
    if result.is_tensor:
        state["value"] = result.value
        # what a reset goes back to; its type is the default of where the first self.log was called, float64 in a
        # training_step under precision="64-true" and elsewhere not
        state["default"] = result._defaults["value"]
        state["cumulated_batch_size"] = result.cumulated_batch_size if meta.is_mean_reduction else None
    return state


def capture_results(results: Mapping[str, Any]) -> list[list[Any]]:
    """Pairs of key and state of every running result; tensors are live."""
    return [[key, _capture_result(result)] for key, result in results.items()]


def _metric_named(module: torch.nn.Module, name: str) -> Any:
    """The metric object that a result was logged from, found again by its attribute."""
    return module.get_submodule(name)


def _result(saved: Mapping[str, Any], module: Any, reduce: Any, package: Package) -> Any:
    meta = package._Metadata(
        reduce_fx=getattr(builtins if saved["builtin"] else torch, saved["reduce_fx"]), **saved["meta"]
    )
    should, rank_zero_only, op = saved["sync"]
    # the function must be the strategy's own: the metadata is compared with that of the next self.log
    meta.sync = package._Sync(_should=should, fn=reduce, rank_zero_only=rank_zero_only, _op=op)
    result = package._ResultMetric(meta, saved["is_tensor"])
    if saved["is_tensor"]:
        result.value, result._defaults["value"] = saved["value"], saved["default"]
        if saved["cumulated_batch_size"] is not None:
            result.cumulated_batch_size = saved["cumulated_batch_size"]
    elif meta.metric_attribute:
        result.value = _metric_named(module, meta.metric_attribute)
    result._update_count = saved["update_count"]
    result._forward_cache, result._computed = saved["forward_cache"], saved["computed"]
    result.has_reset = saved["has_reset"]
    return result.to(module.device)


def apply_results(results: dict[str, Any], saved: list[list[Any]], module: Any, reduce: Any) -> None:
    """Fill ``results`` with what `capture_results` saw.

    Args:
        results: the live collection; emptied first.
        saved: pairs of key and state.
        module: the LightningModule, for its device and its metrics.
        reduce: the strategy's reduction over ranks.
    """
    results.clear()
    package = package_of(results)
    results.update({key: _result(state, module, reduce, package) for key, state in saved})


def capture_connector(connector: Any) -> dict[str, Any]:
    """Metrics of the logger connector, as they are shown, logged and monitored."""
    state = {name: getattr(connector, name) for name in _CONNECTOR}
    return {name: dict(value) if isinstance(value, dict) else value for name, value in state.items()}


def apply_connector(connector: Any, saved: Mapping[str, Any]) -> None:
    """Put back what `capture_connector` saw."""
    for name in _CONNECTOR:
        setattr(connector, name, saved[name])
