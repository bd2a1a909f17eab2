"""Measures, and the ways they are shown: a table on the terminal, a JSON file, a Markdown table."""

from __future__ import annotations

import datetime
import importlib.metadata
import itertools
import json
import os
import platform
import resource
import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

COLUMNS = ("measure", "bound", "median", "min to max", "verdict")
PACKAGES = ("torch", "lightning", "accelerate", "numpy")
FORMATS = {"µs": "{:.1f} µs", "ms": "{:.1f} ms", "%": "{:.2f} %", "x": "{:.2f} x", "s": "{:.3f} s", "GiB": "{:.2f} GiB"}
TABLE_WIDTH = 130  # also where the output goes to a file
COMPARISON_WIDTH = 200  # one line a peer


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


@dataclass
class Row:
    """One way to do a thing, in a table that compares several.

    Attributes:
        section: the heading it stands under.
        name: of the way.
        rounds: column to one value a round; a column may be missing.
        note: why it has no values.
    """

    section: str
    name: str
    rounds: dict[str, list[float]] = field(default_factory=dict)
    note: str = ""

    def add(self, values: Mapping[str, float]) -> None:
        """The values of one more round."""
        for column, value in values.items():
            self.rounds.setdefault(column, []).append(value)

    def cells(self, columns: Columns) -> tuple[str, ...]:
        """What stands under the name and the columns."""
        texts = [_spread(unit, self.rounds.get(column, [])) for column, unit in columns.items()]
        if not any(texts):
            return self.name, self.note, *texts[1:]
        return f"{self.name} ({self.note})" if self.note else self.name, *texts

    def as_dict(self) -> dict[str, Any]:
        medians = {column: statistics.median(values) for column, values in self.rounds.items()}
        return {
            "section": self.section,
            "name": self.name,
            "note": self.note,
            "medians": medians,
            "rounds": self.rounds,
        }


Columns = Mapping[str, str]
"""Heading to unit, one of `FORMATS`."""


def _spread(unit: str, values: list[float]) -> str:
    """Median, and from the least to the greatest."""
    if not values:
        return ""
    form = FORMATS[unit].format
    median = form(statistics.median(values))
    if len(values) == 1:
        return median
    least, greatest = (form(extreme).removesuffix(unit).strip() for extreme in (min(values), max(values)))
    return f"{median} ({least} to {greatest})"


def machine(packages: Sequence[str] = PACKAGES) -> dict[str, Any]:
    """What the figures were measured on."""
    found = {}
    for name in packages:
        with suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        **found,
    }


def versions(about: Mapping[str, Any], packages: Sequence[str]) -> str:
    """Those of `machine`, as text."""
    return ", ".join(f"{name} {about[name]}" for name in packages if name in about)


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


def _circumstances(command: str, about: Mapping[str, Any], packages: Sequence[str]) -> str:
    where = f"{about['cpu']}, {about['cores']} cores; Python {about['python']}, {versions(about, packages)}"
    load = f"Load average {about['load_before']} before and {about['load_after']} after the run."
    return f"`{command}`, {about['date']}, {where}. {load}"


def _markdown(measures: list[Measure], about: dict[str, Any]) -> str:
    lines = ["# What exact resume costs", "", _circumstances("make bench", about, PACKAGES), ""]
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
    document = {"machine": about, "measures": [measure.as_dict() for measure in measures]}
    _write(path, document, _markdown(measures, about))


def _write(path: Path, document: dict[str, Any], markdown: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    path.with_suffix(".md").write_text(markdown, encoding="utf-8")


@dataclass(frozen=True)
class Comparison:
    """A table that compares several ways to do a thing, a section each state.

    Attributes:
        title: of the table.
        command: that made it.
        text: what must be known to read it.
        columns: headings and units.
        packages: whose versions matter.
    """

    title: str
    command: str
    text: str
    columns: Columns
    packages: Sequence[str]

    def print(self, rows: Sequence[Row]) -> None:
        """Show it on the terminal."""
        table = Table("", *self.columns, title=self.title, width=COMPARISON_WIDTH)
        for section, members in _by_section(rows):
            table.add_section()
            table.add_row(f"[bold]{section}")
            for row in members:
                table.add_row(*row.cells(self.columns))
        Console(width=COMPARISON_WIDTH).print(table)

    def write(self, rows: Sequence[Row], about: dict[str, Any], path: Path) -> None:
        """``path`` gets all rounds as JSON; the table as Markdown lies beside it."""
        lines = [f"# {self.title}", "", _circumstances(self.command, about, self.packages), "", self.text, ""]
        for section, members in _by_section(rows):
            lines += [f"## {section}", "", "| | " + " | ".join(self.columns) + " |"]
            lines.append("|" + "---|" * (len(self.columns) + 1))
            lines += ["| " + " | ".join(row.cells(self.columns)) + " |" for row in members]
            lines.append("")
        document = {"machine": about, "units": dict(self.columns), "rows": [row.as_dict() for row in rows]}
        _write(path, document, "\n".join(lines))


def _by_section(rows: Sequence[Row]) -> Iterator[tuple[str, Iterator[Row]]]:
    return itertools.groupby(rows, key=lambda row: row.section)
