"""A plan as JSON: strict, units in the names, the same numbers that are shown."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from typing import Any

from resume_core.cli.plan.advice import Plan
from resume_core.cli.plan.costs import Point

__all__ = ["as_dict", "as_json"]


def as_json(plan: Plan) -> str:
    """The document, indented."""
    return json.dumps(as_dict(plan), indent=2, allow_nan=False)


def as_dict(plan: Plan) -> dict[str, Any]:
    """Plain values; a number that is not finite is None."""
    inputs, costs = plan.inputs, plan.costs
    found: dict[str, Any] = {
        "title": inputs.title,
        "verdict": plan.verdict,
        "save_takes": plan.save_takes,
        "notes": plan.notes,
        "policy": {"save": plan.save, "save_by_mtbf": plan.save_by_mtbf, "keep": plan.keep},
        "inputs": {row.key: {"value": row.value, "from": row.source, "why": row.why} for row in inputs.rows},
        "mtbf_s": inputs.mtbf_s,
        "run": _run(plan),
        "checkpoint": {"size_bytes": inputs.size_bytes, "parts": [asdict(part) for part in inputs.parts]},
        "save": {
            "rank_0_bytes": inputs.first_rank_bytes,
            "blocking_s": inputs.blocking_s,
            "durable_s": inputs.durable_s,
            "drain_s": inputs.drain_s,
        },
        "interval_s": costs.interval.seconds,
        "decided_by": costs.interval.why,
        "best": _point(plan, costs.best),
        "optimum": _point(plan, costs.optimum),
        "current": None if costs.current is None else _point(plan, costs.current),
        "storage": asdict(plan.space),
        "curve": [_point(plan, point) for point in costs.curve],
    }
    return {key: _finite(value) for key, value in found.items()}


def _run(plan: Plan) -> dict[str, Any] | None:
    run = plan.inputs.run
    if run is None:
        return None
    shown = {name: value for name, value in asdict(run).items() if name not in ("parts", "notes")}
    return shown | {"size_bytes": run.size_bytes}


def _point(plan: Plan, point: Point) -> dict[str, Any]:
    inputs, hours = plan.inputs, point.lost * 24
    price = None if inputs.price is None else hours * inputs.gpus * inputs.price
    return {
        **asdict(point),
        "lost": point.lost,
        "lost_s_per_day": hours * 3600,
        "lost_gpu_s_per_day": hours * 3600 * inputs.gpus,
        "lost_price_per_day": price,
    }


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
