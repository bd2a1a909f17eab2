"""What the plots have in common."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

__all__ = ["STEPS", "Rows", "base", "colours", "ended", "field", "moment", "short", "shown_time", "tips"]

Rows = list[dict[str, Any]]


def field(name: str, kind: str, **more: Any) -> dict[str, Any]:
    """A channel that shows a field; ``kind`` is quantitative, nominal or temporal."""
    return {"field": name, "type": kind, **more}


STEPS = {"title": "optimizer step", "axis": {"tickMinStep": 1, "format": ",d"}}
"""What an axis of steps has."""


def base(height: int, **fields: Any) -> dict[str, Any]:
    """A plot as wide as its place."""
    return {"width": "container", "height": height, "autosize": {"type": "fit-x", "contains": "padding"}, **fields}


def colours(names: dict[str, str]) -> dict[str, Any]:
    """A channel that gives each value of ``what`` its colour, with a legend."""
    scale = {"domain": list(names), "range": list(names.values())}
    return field("what", "nominal", scale=scale, legend={"orient": "top", "title": None})


def tips(**titles: str) -> list[dict[str, Any]]:
    """What is told of a mark: fields with their titles."""
    return [field(name, "nominal", title=title) for name, title in titles.items()]


def ended(cause: str | None) -> str:
    """What ended an attempt, in words."""
    return {None: "still running, or killed", "superseded": "another start took over"}.get(cause, str(cause))


def moment(text: str | None) -> datetime | None:
    """A time in UTC; None for one that cannot be read."""
    try:
        return datetime.fromisoformat(text or "").astimezone(timezone.utc)
    except ValueError:
        return None


def shown_time(text: str | None) -> str:
    """A time in UTC, to the second."""
    found = moment(text)
    return "" if found is None else found.strftime("%Y-%m-%d %H:%M:%S")


def short(attempt: str) -> str:
    """``attempt-0003-7f3a`` is ``3-7f3a``."""
    _, number, token = attempt.split("-")
    return f"{int(number)}-{token}"
