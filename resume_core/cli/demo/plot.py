"""The picture of the demo: both loss curves, and a closer look at every kill."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from resume_core.cli.demo.compare import Run, Start, Step, effective

__all__ = ["draw"]

_PEACE, _KILL = "#c3cfdc", "#c1121f"
_STARTS = ("#e07a1f", "#1d4e89", "#2a7f62", "#7b4b94")
_CLOSE_UPS = 3
_AROUND = 8  # steps shown on either side of what was done again


def draw(reference: Run, interrupted: Run, path: Path, *, title: str) -> None:
    """Draw the loss of every step of both runs.

    Args:
        reference: the run that was never killed.
        interrupted: the other.
        path: of the PNG file.
        title: what trained.
    """
    starts = interrupted.starts
    close_ups = list(itertools.pairwise(starts))[:_CLOSE_UPS]
    figure = Figure(figsize=(11, 7.6), dpi=120, layout="constrained")
    grid = figure.add_gridspec(2, len(close_ups))
    figure.suptitle(f"exact-resume demo: {title}")
    expected = effective(reference.starts)
    axes = [figure.add_subplot(grid[0, :]), *(figure.add_subplot(grid[1, n]) for n in range(len(close_ups)))]
    _overview(axes[0], expected, starts)
    for number, (killed, resumed) in enumerate(close_ups):
        _close_up(axes[number + 1], expected, killed, resumed, number)
        axes[number + 1].title.set_fontsize(11 if len(close_ups) < _CLOSE_UPS else 7.5)
    handles = axes[0].get_legend_handles_labels()[0] + axes[1].get_legend_handles_labels()[0]
    figure.legend(handles=handles, loc="outside lower center", ncols=min(len(handles), 8), frameon=False)
    figure.savefig(path)


def _curve(axes: Any, steps: Sequence[Step], **style: Any) -> None:
    axes.plot([step.step for step in steps], [step.loss for step in steps], **style)


def _colour(number: int) -> str:
    return _STARTS[number % len(_STARTS)]


def _overview(axes: Any, expected: Sequence[Step], starts: Sequence[Start]) -> None:
    _curve(axes, expected, color=_PEACE, linewidth=4.5, label="uninterrupted")
    for number, start in enumerate(starts):
        _curve(axes, start.steps, color=_colour(number), linewidth=0.9, label=f"start {number + 1}")
    for number, start in enumerate(starts[:-1]):
        label = "SIGKILL" if number == 0 else None
        axes.axvline(start.steps[-1].step, color=_KILL, linestyle="--", linewidth=1.2, label=label)
    axes.set(xlabel="optimizer step", ylabel="loss of each batch", ylim=(0, None))
    axes.margins(x=0.01)


def _close_up(axes: Any, expected: Sequence[Step], killed: Start, resumed: Start, number: int) -> None:
    saved, end = resumed.begins_at, killed.steps[-1].step
    window = range(saved - _AROUND, end + _AROUND + 1)
    peace, before, after = (
        [step for step in steps if step.step in window] for steps in (expected, killed.steps, resumed.steps)
    )
    axes.axvspan(saved + 0.5, end + 0.5, color="#f6e7c8", zorder=0, label="lost and done again")
    _curve(axes, peace, color=_PEACE, linewidth=7)
    style = {"markersize": 9, "markerfacecolor": "none", "markeredgewidth": 1.4, "linewidth": 0}
    _curve(axes, before, color=_colour(number), marker="o", **style)
    style = {"marker": "o", "markersize": 3.5, "linewidth": 1.2}
    _curve(axes, after, color=_colour(number + 1), **style)
    axes.axvline(end + 0.5, color=_KILL, linestyle="--", linewidth=1.2)
    axes.axvline(saved + 0.5, color="#555555", linestyle=":", linewidth=1.2, label="last save")
    title = f"○ start {number + 1}, killed after step {end}    ● start {number + 2}, from step {saved}"
    axes.set(xlabel="optimizer step", ylabel="loss of each batch" if number == 0 else "", title=title)
