"""Values over steps: one line for what the run goes on from, and what was trained twice, as it was the first time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from resume_core.cli.report.charts.parts import STEPS, Rows, base, ended, field, short, tips
from resume_core.cli.report.curve import Point
from resume_core.cli.report.facts import Report

__all__ = ["curve"]

_MOST_POINTS, _FEW_POINTS = 1500, 150
_KEPT, _LOST = "kept", "lost"


def curve(report: Report) -> dict[str, Any]:
    """The specification and its rows; the page shows the points of one metric at a time."""
    names = {point.name for point in report.points}
    rows = [row for name in names for row in _rows(report, [one for one in report.points if one.name == name])]
    lines = {kind: [row for row in rows if row["kind"] == kind] for kind in (_KEPT, _LOST)}
    spans = [
        {"begin": one.replayed[0], "end": one.replayed[1], "attempt": short(one.name)}
        | {"what": f"{one.replayed[0] + 1:,} to {one.replayed[1]:,}"}
        for one in report.attempts
        if one.replayed
    ]
    cuts = [
        {"step": one.reached_step, "attempt": short(one.name), "what": ended(one.cause), "why": one.why or ""}
        for one in report.attempts[:-1]
        if one.reached_step is not None
    ]
    lost = [
        {"begin": one.begin, "end": one.end, "attempt": short(one.attempt), "name": one.name, "what": one.value}
        | {"steps": f"{one.begin:,} to {one.end:,}"}
        for one in report.gaps
    ]
    layers = [_spans(), _gaps(), _line(_LOST, 8, 0.55), _line(_KEPT, 2, 1), _cuts()]
    return {"spec": base(260, layer=layers), "rows": {**lines, "spans": spans, "gaps": lost, "cuts": cuts}}


def _rows(report: Report, points: list[Point]) -> Rows:
    """Of one metric. A line goes on over attempts, and ends where one began anew."""
    found: Rows = []
    line = 0
    for number, one in enumerate(report.attempts):
        line += number > 0 and one.resumed_from is None
        own = {point.step: point for point in points if point.attempt == one.name}
        begin = one.replayed[0] if one.replayed else max(own, default=0)
        kept = [_row(own[step], _KEPT, str(line)) for step in sorted(own) if step <= begin]
        lost = [_row(own[step], _LOST, one.name) for step in sorted(own) if step >= begin]
        found += [*kept, *(lost if len(lost) > 1 else [])]
    return list(_thinned(found))


def _row(point: Point, kind: str, line: str) -> dict[str, Any]:
    fields = {"attempt": short(point.attempt), "step": point.step, "name": point.name, "value": point.value}
    return fields | {"kind": kind, "line": line, "told": f"{point.value:.6g}"}


def _thinned(rows: Rows) -> Iterator[dict[str, Any]]:
    """All of few; of many every so manieth, and each that was trained twice."""
    every = -(-len(rows) // _MOST_POINTS)
    for number, row in enumerate(rows):
        if every < 2 or number % every == 0 or row["kind"] == _LOST:
            yield row | {"dot": len(rows) <= _FEW_POINTS}


def _spans() -> dict[str, Any]:
    encoding = {"x": field("begin", "quantitative", **STEPS), "x2": {"field": "end"}}
    told = tips(what="steps trained again", attempt="first by")
    mark = {"type": "rect", "color": "--lost", "opacity": 0.2}
    return {"data": {"name": "spans"}, "mark": mark, "encoding": {**encoding, "tooltip": told}}


def _gaps() -> dict[str, Any]:
    """What no curve can show; a single step has an outline, and so a width."""
    encoding = {"x": field("begin", "quantitative", **STEPS), "x2": {"field": "end"}}
    told = tips(what="value", steps="steps", attempt="attempt")
    mark = {"type": "rect", "color": "--bad", "opacity": 0.25, "stroke": "--bad", "strokeWidth": 1}
    return {"data": {"name": "gaps"}, "mark": mark, "encoding": {**encoding, "tooltip": told}}


def _cuts() -> dict[str, Any]:
    encoding = {
        "x": field("step", "quantitative", **STEPS),
        "tooltip": tips(attempt="attempt", what="ended", why="why"),
    }
    mark = {"type": "rule", "color": "--end", "strokeDash": [4, 3], "strokeWidth": 1.5}
    return {"data": {"name": "cuts"}, "mark": mark, "encoding": encoding}


def _line(kind: str, width: int, opacity: float) -> dict[str, Any]:
    dots = {"condition": {"test": "datum.dot", "value": width * 14}, "value": 0}
    shared = {
        "x": field("step", "quantitative", **STEPS),
        "y": field("value", "quantitative", title=None, scale={"zero": False}),
        "detail": {"field": "line"},
        "tooltip": tips(attempt="attempt", step="step", told="value"),
    }
    colour = {"color": f"--{kind}", "opacity": opacity}
    layers = [
        {"mark": {"type": "line", "strokeWidth": width, "strokeCap": "round", **colour}, "encoding": shared},
        {"mark": {"type": "point", "filled": True, **colour}, "encoding": {**shared, "size": dots}},
    ]
    return {"data": {"name": kind}, "layer": layers}
