"""A plan in a terminal of 80 columns or more: the answer first, then a picture, then the figures behind it."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from resume_core.cli.plan.advice import Plan
from resume_core.cli.plan.costs import Point, ladder
from resume_core.cli.plan.tables import a_day, cost_table, input_table, size_table, space_table
from resume_core.cli.plan.units import show_seconds, show_share

__all__ = ["print_plan"]

_LABEL = 8  # columns
_LEAST = 10  # of a bar, however narrow the terminal is
# each kind of loss has a sign of its own, so that nothing depends on colours
_KINDS = (("saving", "cyan"), ("again", "yellow"), ("restarting", "magenta"))
_SIGNS, _PLAIN_SIGNS = "█▓░→", "#+.>"  # one for each kind, and that a bar goes on
_NAMES = {"saving": "saving", "again": "training again", "restarting": "restarting"}


def print_plan(plan: Plan, console: Console) -> None:
    """Print all of it."""
    console.print(plan.inputs.title, style="dim", markup=False)
    console.print()
    console.print(plan.verdict, style="bold", markup=False)
    console.print(plan.save_takes, markup=False)
    console.print()
    for line in (f"    save={plan.save}", f"    keep={plan.keep}"):
        console.print(line, style="bold green", markup=False)
    console.print(f"or  save={plan.save_by_mtbf}, which follows what saves really cost", markup=False)
    console.print()
    _print_bars(plan, console)
    for rows in (cost_table(plan), size_table(plan), space_table(plan), input_table(plan)):
        console.print()
        console.print(_table(rows))
    if plan.notes:
        console.print()
    for note in plan.notes:
        console.print(f"- {note}", markup=False)


def _table(rows: list[tuple[str, ...]]) -> Table:
    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
    for heading in rows[0]:
        table.add_column(Text(heading), overflow="fold")
    for row in rows[1:]:
        table.add_row(*(Text(cell, style="yellow" if cell.startswith("assumed") else "") for cell in row))
    return table


def _print_bars(plan: Plan, console: Console) -> None:
    rungs = ladder(plan.costs, plan.inputs)
    each, unit, show = a_day(plan)
    said = [_said(name, point, show(point.lost * each)) for name, point in rungs]
    width = max(min(console.width, 100) - _LABEL - 4 - max(map(len, said)), _LEAST)
    signs = _SIGNS if console.encoding.startswith("utf") else _PLAIN_SIGNS
    # beyond four times the least loss the shape is told by the number
    full = min(max(point.lost for _, point in rungs), max(plan.costs.best.lost * 4, 1e-9))
    console.print(f"lost of the time, and {unit} a day, saving every", style="bold")
    legend = Text(" " * (_LABEL + 3))
    for (key, colour), sign in zip(_KINDS, signs, strict=False):
        legend.append(f"{sign} {_NAMES[key]}  ", style=colour)
    console.print(legend)
    for (name, point), text in zip(rungs, said, strict=True):
        console.print(_bar(point, width / full, width, signs, is_plan=name == "plan").append(text))


def _said(name: str, point: Point, price: str) -> str:
    slow = "" if point.is_possible else "store too slow"
    return f"{show_share(point.lost):<7} {price:<7} {name} {slow}".rstrip()


def _bar(point: Point, scale: float, width: int, signs: str, *, is_plan: bool) -> Text:
    label = f"{'>' if is_plan else ' '} {show_seconds(point.interval_s):>{_LABEL}} "
    line = Text(label, style="bold" if is_plan else "")
    end, total = 0, 0.0
    for (key, colour), sign in zip(_KINDS, signs, strict=False):
        total += getattr(point, key)
        begin, end = end, min(round(total * scale), width)
        line.append(sign * (end - begin), style=colour)
    return line.append(signs[-1] if total * scale > width + 0.5 else " ")
