"""The cost over the interval, as an SVG that takes its colours from the page around it."""

from __future__ import annotations

import io
import re
from typing import Any

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from resume_core.cli.plan.advice import Plan
from resume_core.cli.plan.costs import named_points
from resume_core.cli.plan.tables import a_day
from resume_core.cli.plan.units import show_seconds, show_share

__all__ = ["draw"]

# colours that stand for those of the page, light or dark; matplotlib writes them as they are
_INK, _FAINT = "#010101", "#020202"
_KINDS = {"saving": "#030303", "again": "#040404", "restarting": "#050505"}
_COLOURS = {_INK: "currentColor", _FAINT: "var(--faint)"} | {c: f"var(--{kind})" for kind, c in _KINDS.items()}
_NAMES = {"saving": "saving", "again": "training again what was lost", "restarting": "restarting"}
_STYLE: Any = {
    "svg.fonttype": "none",  # text stays text: small, and read aloud
    "svg.hashsalt": "exact-resume",  # one plan, one file
    "font.family": "DejaVu Sans",
    "font.size": 12,
    "hatch.linewidth": 0.6,
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), _INK),
}
_IMPOSSIBLE = {"facecolor": "none", "edgecolor": _FAINT, "hatch": "//", "linewidth": 0}
_TICKS_S = (1e-3, 0.01, 0.1, 1, 10, 60, 300, 1200, 3600, 4 * 3600, 16 * 3600, *(86400 * n for n in (4, 20, 100, 1000)))


def draw(plan: Plan) -> str:
    """The ``<svg>`` element."""
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(7.2, 4.3), layout="constrained")
        axes = figure.add_subplot()
        top = _shares(axes, plan)
        _times(axes, plan)
        _prices(axes, plan)
        _marks(axes, plan, top)
        handles = axes.get_legend_handles_labels()[0]
        figure.legend(handles=handles[::-1], loc="outside upper center", ncols=2, frameon=False)
        out = io.StringIO()
        figure.savefig(out, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return _embedded(out.getvalue())


def _shares(axes: Any, plan: Plan) -> float:
    """The stacked losses; beyond four times the least one the curve leaves the picture."""
    curve, costs = plan.costs.curve, plan.costs
    shown = [costs.best, costs.optimum, *([costs.current] if costs.current else [])]
    top = min(max(point.lost for point in curve), max(4 * costs.best.lost, *(1.2 * p.lost for p in shown), 1e-6))
    seconds = [point.interval_s for point in curve]
    layers = [[getattr(point, kind) for point in curve] for kind in ("restarting", "again", "saving")]
    kinds = ("restarting", "again", "saving")
    axes.stackplot(
        seconds, *layers, colors=[_KINDS[kind] for kind in kinds], labels=[_NAMES[kind] for kind in kinds], alpha=0.85
    )
    axes.set(xscale="log", xlim=(seconds[0], seconds[-1]), ylim=(0, top * 1.02), ylabel="of the time is lost")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: show_share(value)))
    impossible = [point.interval_s for point in curve if not point.is_possible]
    if impossible:
        axes.axvspan(seconds[0], impossible[-1], label="more often than the store can take it", **_IMPOSSIBLE)
    axes.spines[["top", "right"]].set_visible(False)
    return top


def _prices(axes: Any, plan: Plan) -> None:
    """The same as money a day, or as GPU time."""
    each, name, _ = a_day(plan)
    right = axes.secondary_yaxis("right", functions=(lambda share: share * each, lambda amount: amount / each))
    right.set_ylabel(f"{name} a day")
    right.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    right.spines["right"].set_visible(False)


def _times(axes: Any, plan: Plan) -> None:
    begin, end = plan.costs.curve[0].interval_s, plan.costs.curve[-1].interval_s
    axes.xaxis.set_major_locator(FixedLocator([tick for tick in _TICKS_S if begin <= tick <= end]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: show_seconds(value)))
    axes.set_xlabel("training between two saves")


_TOWARDS = {"center": (0.5, 0), "right": (1, 0), "left": (0, 0)}  # the corner of a label that its line begins at


def _marks(axes: Any, plan: Plan, top: float) -> None:
    points = named_points(plan.costs)
    signs, heights = {"plan": "o", "optimum": "D", "now": "s"}, {"plan": 56, "optimum": 34, "now": 16}
    for name, point in points:
        # to either side of the plan, so that no line to a label goes through another one
        side = "center" if name == "plan" else "right" if point.interval_s < plan.costs.best.interval_s else "left"
        lost = min(point.lost, top)
        axes.plot([point.interval_s], [lost], signs[name], color=_INK, markersize=8, zorder=3, clip_on=False)
        axes.annotate(
            f"{name}: {show_seconds(point.interval_s)}",
            (point.interval_s, lost),
            xytext=(0, heights[name]),
            textcoords="offset points",
            ha=side,
            fontweight="bold" if name == "plan" else "normal",
            arrowprops={"arrowstyle": "-", "color": _INK, "linewidth": 0.8, "relpos": _TOWARDS[side]},
        )


def _embedded(svg: str) -> str:
    """The element alone, as wide as its place, in the colours of the page."""
    svg = svg[svg.index("<svg") :]
    for name in ("width", "height"):
        svg = re.sub(rf'(<svg[^>]*?) {name}="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    for colour, name in _COLOURS.items():
        svg = svg.replace(colour, name)
    # laid out in the font that matplotlib brings; shown in the one of the page, which is no wider
    return re.sub(r"'DejaVu Sans'[^;\"]*", "system-ui, sans-serif", svg)
