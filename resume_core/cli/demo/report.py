"""What the demo shows: a table, a sentence, ``demo.json`` and ``demo.png``."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from resume_core.cli.demo.compare import Row, Run, coverage, done_again, effective
from resume_core.cli.demo.folder import JSON, PLOT
from resume_core.cli.demo.frameworks import FRAMEWORKS, Framework

__all__ = ["Report", "print_report", "verdict", "write_report"]


@dataclass(frozen=True)
class Report:
    """The outcome of a demo.

    Attributes:
        plugin: False for the framework alone.
        reference: the run that was never killed.
        interrupted: the other.
        rows: their comparison.
        framework: that trained.
    """

    plugin: bool
    reference: Run
    interrupted: Run
    rows: list[Row]
    framework: Framework = FRAMEWORKS["lightning"]

    @property
    def differences(self) -> list[str]:
        """The names of what should be equal and is not."""
        return [row.name for row in self.rows if row.equal is False]

    @property
    def identical(self) -> bool:
        """Whether everything that should be equal is."""
        return not self.differences


def verdict(report: Report) -> str:
    """One or two sentences: identical, or what differs and whether that was to be expected."""
    if report.identical:
        times = {1: "once", 2: "twice"}.get(len(report.interrupted.starts) - 1, "again and again")
        return f"Identical to the last bit: the training that was killed {times} ended where the other one did."
    differs = f"Not identical. What differs: {'; '.join(report.differences)}."
    if report.plugin:
        return f"{differs} exact-resume promises that this never happens: please report it, with {JSON}."
    return (
        f"{differs} This is expected of stock {report.framework.title}, and so is exit code 1: its checkpoints hold "
        f"{report.framework.lacks}, even where each start has the same seed."
    )


def print_report(report: Report, out: Path, console: Console, *, seconds: float) -> None:
    """Print the table and, as the last line, the verdict.

    Args:
        report: what to print.
        out: where the files lie, to name them.
        console: where it goes.
        seconds: that the demo took.
    """
    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
    for heading in ("", "uninterrupted", "killed and resumed", ""):
        table.add_column(heading, overflow="fold")
    marks = {True: "[green]same[/green]", False: "[red]differs[/red]", None: ""}
    for row in report.rows:
        table.add_row(row.name, row.left, row.right, marks[row.equal])
    console.print()
    console.print(table)
    console.print()
    console.print(f"{seconds:.0f} s; loss curves: {out / PLOT}, figures: {out / JSON}", soft_wrap=True, markup=False)
    console.print(verdict(report), style="bold green" if report.identical else "bold red", markup=False)


def write_report(report: Report, out: Path, *, seconds: float) -> None:
    """Write ``demo.json`` and ``demo.png``.

    Args:
        report: what to write.
        out: the demo's folder.
        seconds: that the demo took.
    """
    from resume_core.cli.demo.plot import draw

    runs = {"uninterrupted": report.reference, "interrupted": report.interrupted}
    figures = {
        "identical": report.identical,
        "verdict": verdict(report),
        "framework": report.framework.name,
        "plugin": report.plugin,
        "seconds": round(seconds, 1),
        "comparison": [asdict(row) for row in report.rows],
        **{name: _figures(run) for name, run in runs.items()},
    }
    (out / JSON).write_text(json.dumps(figures, indent=2) + "\n")
    draw(report.reference, report.interrupted, out / PLOT, title=report.framework.described(plugin=report.plugin))


def _figures(run: Run) -> dict[str, Any]:
    steps, first = effective(run.starts), run.starts[0]
    repeated, missed = coverage(steps, first.num_samples, 1 + steps[-1].epoch)
    return {
        "starts": [
            {"seed": start.seed, "begins_at": start.begins_at, "ends_at": start.steps[-1].step} for start in run.starts
        ],
        "samples_seen": sum(len(step.ids) for step in steps),
        "samples_repeated": repeated,
        "samples_missed": missed,
        "batches_done_again": len(done_again(run.starts)),
        "parameters": run.parameters,
        "optimizer": run.optimizer,
        "accuracy": run.accuracy,
    }
