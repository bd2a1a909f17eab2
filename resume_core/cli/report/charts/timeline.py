"""Which attempt ran when, what of it was kept, and when it saved."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from resume_core.cli.report.charts.parts import Rows, base, colours, ended, field, moment, short, shown_time, tips
from resume_core.cli.report.facts import AttemptTold, Report

__all__ = ["timeline"]

_MOST_BARS, _MOST_TICKS = 40, 1000
_KINDS = {"starting": "--starting", "trained and kept": "--kept", "trained again later": "--lost"}
_UTC = {"scale": {"type": "utc"}, "title": None}
_AXIS = {
    "format": {
        **dict.fromkeys(("milliseconds", "seconds"), "%H:%M:%S"),
        **dict.fromkeys(("minutes", "hours"), "%H:%M"),
        **dict.fromkeys(("date", "day", "week"), "%d %b"),
        "month": "%b %Y",
        "quarter": "%b %Y",
        "year": "%Y",
    }
}


def timeline(report: Report) -> dict[str, Any]:
    """The specification and its rows; the newest attempts."""
    attempts = [one for one in report.attempts if moment(one.started) and moment(one.seen)][-_MOST_BARS:]
    rows = {
        "bars": [bar for one in attempts for bar in _bars(one)],
        "ticks": _ticks(report, {one.name for one in attempts}),
        "ends": [
            {"attempt": short(one.name), "time": one.seen, "at": shown_time(one.seen), "what": ended(one.cause)}
            | {"why": one.why or ""}
            for one in attempts
        ],
    }
    y = field("attempt", "nominal", sort=[short(one.name) for one in attempts], title=None)
    return {"spec": base(26 * max(len(attempts), 2), layer=[_bar(y), _tick(y), _end(y)]), "rows": rows}


def _bars(one: AttemptTold) -> Rows:
    """Of one attempt: until it trained, what was kept, what was not."""
    begin, end = moment(one.started), moment(one.seen)
    if begin is None or end is None or end < begin:
        return []
    up_s = (end - begin).total_seconds()
    waited_s = up_s if one.first_batch_s is None else min(max(one.first_batch_s, 0.0), up_s)
    trains = begin + timedelta(seconds=waited_s)
    kept, lost = one.kept_s or 0.0, one.lost_s or 0.0
    turns = trains + (end - trains) * (kept / (kept + lost) if kept + lost else 1.0)
    pieces = zip(_KINDS, (begin, trains, turns), (trains, turns, end), strict=True)
    return [
        {"attempt": short(one.name), "what": what, "begin": a.isoformat(), "end": b.isoformat()}
        | {"long": str(b - a).partition(".")[0]}
        for what, a, b in pieces
        if b > a
    ]


def _ticks(report: Report, names: set[str]) -> Rows:
    saves = [one for one in report.saves if one.attempt in names and moment(one.time) and not one.failed]
    return [
        {"attempt": short(one.attempt), "time": one.time, "at": shown_time(one.time), "path": one.path}
        for one in saves[-_MOST_TICKS:]
    ]


def _bar(y: dict[str, Any]) -> dict[str, Any]:
    x = {"x": field("begin", "temporal", axis=_AXIS, **_UTC), "x2": {"field": "end"}, "y": y}
    told = tips(attempt="attempt", what="what", long="for")
    mark = {"type": "bar", "height": 14, "minBandSize": 2}
    return {"data": {"name": "bars"}, "mark": mark, "encoding": {**x, "color": colours(_KINDS), "tooltip": told}}


def _tick(y: dict[str, Any]) -> dict[str, Any]:
    encoding = {"x": field("time", "temporal", **_UTC), "y": y, "tooltip": tips(path="save", at="taken")}
    mark = {"type": "tick", "thickness": 1, "size": 18, "color": "--ink", "opacity": 0.7}
    return {"data": {"name": "ticks"}, "mark": mark, "encoding": encoding}


def _end(y: dict[str, Any]) -> dict[str, Any]:
    told = tips(attempt="attempt", what="ended", why="why", at="heard of last")
    colour = {"condition": {"test": "datum.what === 'finished'", "value": "--good"}, "value": "--end"}
    encoding = {"x": field("time", "temporal", **_UTC), "y": y, "color": colour, "tooltip": told}
    mark = {"type": "point", "shape": "diamond", "size": 80, "filled": True, "opacity": 1}
    return {"data": {"name": "ends"}, "mark": mark, "encoding": encoding}
