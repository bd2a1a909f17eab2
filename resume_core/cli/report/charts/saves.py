"""What each save took: of training, and until it was in the directory."""

from __future__ import annotations

from typing import Any

from resume_core.cli.report.charts.parts import STEPS, base, colours, field, tips
from resume_core.cli.report.facts import Report

__all__ = ["saves"]

_MOST = 1000
_KINDS = {"training waits": "--blocked", "until in the directory": "--kept"}


def saves(report: Report) -> dict[str, Any]:
    """The specification and its rows; the newest saves."""
    rows = [
        {"step": save.step, "seconds": seconds, "what": what, "path": save.path, "reason": save.reason}
        | {"told": f"{seconds:.3g} s"}
        for save in report.saves[-_MOST:]
        for what, seconds in zip(_KINDS, (save.blocked_s, save.durable_s), strict=True)
        if seconds and save.step is not None
    ]
    shapes = {"domain": list(_KINDS), "range": ["circle", "triangle-up"]}
    encoding = {
        "x": field("step", "quantitative", **STEPS),
        "y": field("seconds", "quantitative", title="seconds", scale={"type": "log"}, axis={"format": "~g"}),
        "color": colours(_KINDS),
        "shape": field("what", "nominal", scale=shapes),
        "tooltip": tips(path="save", reason="for", what="what", told="took"),
    }
    mark = {"type": "point", "filled": True, "size": 36, "opacity": 0.9}
    return {"spec": base(200, data={"name": "saves"}, mark=mark, encoding=encoding), "rows": {"saves": rows}}
