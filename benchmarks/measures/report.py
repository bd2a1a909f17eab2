"""Measures, and the ways they are shown: a table on the terminal, a JSON file, a Markdown table."""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import platform
import resource
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

COLUMNS = ("measure", "bound", "median", "min to max", "verdict")
PACKAGES = ("torch", "lightning", "numpy")
FORMATS = {"µs": "{:.1f} µs", "ms": "{:.1f} ms", "%": "{:.2f} %", "x": "{:.2f} x"}
TABLE_WIDTH = 130  # also where the output goes to a file


@dataclass(frozen=True)
class Measure:
    """One figure, measured several times.

    Attributes:
        section: the heading it stands under.
        name: what was measured.
        unit: one of `FORMATS`.
        rounds: one value a round.
        bound: what the median may be at most; None for a figure that only informs.
    """

    section: str
    name: str
    unit: str
    rounds: list[float]
    bound: float | None = None

    @property
    def median(self) -> float:
        return statistics.median(self.rounds)

    @property
    def verdict(self) -> str:
        if self.bound is None:
            return ""
        return "met" if self.median <= self.bound else "MISSED"

    def cells(self) -> tuple[str, ...]:
        """What stands under `COLUMNS`."""
        form = FORMATS[self.unit].format
        bound = "" if self.bound is None else "≤ " + form(self.bound)
        spread = "" if len(self.rounds) == 1 else f"{form(min(self.rounds))} to {form(max(self.rounds))}"
        return self.name, bound, form(self.median), spread, self.verdict

    def as_dict(self) -> dict[str, Any]:
        fields = {"section": self.section, "name": self.name, "unit": self.unit, "bound": self.bound}
        return {**fields, "median": self.median, "verdict": self.verdict, "rounds": self.rounds}


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    versions = {name: importlib.metadata.version(name) for name in PACKAGES}
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        **versions,
    }


def load_average() -> float:
    """Of the last minute: above the number of cores, others were running and the figures are worth little."""
    return round(os.getloadavg()[0], 1)


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def peak_rss_bytes() -> int:
    """The most memory this process held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # kilobytes on Linux


def print_table(measures: list[Measure]) -> None:
    table = Table(*COLUMNS, title="What exact resume costs", width=TABLE_WIDTH)
    for place, measure in enumerate(measures):
        if place == 0 or measures[place - 1].section != measure.section:
            table.add_section()
            table.add_row(f"[bold]{measure.section}")
        table.add_row(*measure.cells())
    Console(width=TABLE_WIDTH).print(table)


def _markdown(measures: list[Measure], about: dict[str, Any]) -> str:
    where = f"{about['cpu']}, {about['cores']} cores; Python {about['python']}, " + ", ".join(
        f"{name} {about[name]}" for name in PACKAGES
    )
    load = f"Load average {about['load_before']} before and {about['load_after']} after the run."
    lines = ["# What exact resume costs", "", f"`make bench`, {about['date']}, {where}. {load}", ""]
    lines += ["Medians of interleaved rounds, ours and the yardstick in turn. Rows without a bound only inform.", ""]
    lines += ["| " + " | ".join(COLUMNS) + " |", "|" + "---|" * len(COLUMNS)]
    section = ""
    for measure in measures:
        if measure.section != section:
            section = measure.section
            lines.append(f"| **{section}** |" + " |" * (len(COLUMNS) - 1))
        lines.append("| " + " | ".join(measure.cells()) + " |")
    return "\n".join(lines) + "\n"


def write_files(measures: list[Measure], about: dict[str, Any], path: Path) -> None:
    """``path`` gets all rounds as JSON; the table as Markdown lies beside it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    document = {"machine": about, "measures": [measure.as_dict() for measure in measures]}
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    path.with_suffix(".md").write_text(_markdown(measures, about), encoding="utf-8")
