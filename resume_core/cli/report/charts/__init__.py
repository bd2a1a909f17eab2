"""The plots of a report as Vega-Lite. Colours are names, as in ``--kept``: the page has them, light and dark.

Names of users are values of rows and never part of an expression, so that nothing in them is ever run.
"""

from __future__ import annotations

from typing import Any

from resume_core.cli.report.charts.curve import curve
from resume_core.cli.report.charts.saves import saves
from resume_core.cli.report.charts.timeline import timeline
from resume_core.cli.report.facts import Report

__all__ = ["charts"]


def charts(report: Report) -> dict[str, Any]:
    """By the id of its place in the page: the specification, and its rows by the name of their data."""
    return {"timeline": timeline(report), "curve": curve(report), "saves": saves(report)}
