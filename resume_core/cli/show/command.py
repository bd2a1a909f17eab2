"""The options of ``exact-resume show``, and what it prints."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from resume_core.cli.exits import BAD, GOOD, answering
from resume_core.cli.names import CheckpointName
from resume_core.cli.options import AsJson, Scratch, StorageOptions, parse_storage_options
from resume_core.cli.progress import busy
from resume_core.cli.words import age, command_line, number, place, seconds

if TYPE_CHECKING:
    from resume_core.cli.show.facts import Shown

__all__ = ["show"]

_MOST_METRICS, _MOST_GROUPS = 12, 8
_PHASES = {"stage_s": "staged in", "write_s": "written in", "commit_s": "committed in"}
_SHOWN_PACKAGES = ("torch", "lightning", "accelerate", "transformers", "exact-resume", "python")


def show(
    url: Annotated[str, typer.Argument(help="A run's directory, an attempt in it, or one checkpoint; local or a URL.")],
    name: CheckpointName = None,
    scratch: Scratch = None,
    as_json: AsJson = False,
    storage_options: StorageOptions = None,
) -> None:
    """Show one checkpoint: where it was taken, its parts, and whether training can go on from it.

    Of a run, or of an attempt, it is the newest. No tensor is read, and nothing is written.

    Exit code 0: nothing is wrong with what was looked at. 1: damaged. 2: there is none, or it cannot be read.
    """
    options = parse_storage_options(storage_options)
    with answering("nothing to show"), busy("reading"):
        from resume_core.cli.show.facts import facts

        shown = facts(url, name, scratch=scratch, options=options)
    if as_json:
        typer.echo(json.dumps(shown.as_json(), indent=1))
    else:
        print_shown(shown, Console(highlight=False))
    raise typer.Exit(BAD if shown.problems else GOOD)


def print_shown(shown: Shown, console: Console) -> None:
    """Print it."""
    console.print(Text(shown.path, "bold cyan").append(f"  {shown.url}", "default not bold"))
    console.print(_verdict(shown))
    for problem in shown.problems:
        console.print(Text(f"- {problem}", "red"))
    if shown.diverged is not None:
        console.print(Text(f"but {shown.diverged.text}", "bold yellow"))
    if not shown.problems:
        console.print(Text("sizes agree; `exact-resume verify` reads the bytes", "dim"))
    console.print()
    console.print(_facts(shown.header, shown.tiers))
    console.print()
    console.print(_parts(shown))
    console.print(Text(_compared(shown), "dim"))
    if shown.groups:
        console.print()
        console.print(_groups(shown))


def _verdict(shown: Shown) -> Text:
    if shown.problems:
        return Text("damaged: training cannot go on from it", "bold red")
    if not shown.can_continue:
        return Text("weights only: training cannot go on from it", "bold yellow")
    if ending := _mapping(shown.header, "finished"):
        return Text(f"the end of a fit ({ending.get('cause')}): nothing was left to train", "green")
    return Text("training can go on from it", "bold green")


def _facts(header: dict[str, Any], tiers: list[str]) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    for name, value in _rows(header):
        table.add_row(Text(name, "dim"), Text(value))
    if len(tiers) > 1:
        table.add_row(Text("tiers", "dim"), Text("\n".join(tiers)))
    return table


def _rows(header: dict[str, Any]) -> list[tuple[str, str]]:
    told, metrics, timings = (_mapping(header, name) for name in ("provenance", "metrics", "timings"))
    rows = [("taken at", place(_mapping(header, "progress")))]
    when = header.get("time")
    rows.append(("saved", f"{when} ({age(when)} ago), reason: {header.get('reason')}"))
    phases = [(word, timings.get(name)) for name, word in _PHASES.items()]
    took = (f"{word} {seconds(value)}" for word, value in phases if isinstance(value, int | float))
    rows.append(("took", ", ".join(took)))
    shown = [f"{name} {number(value)}" for name, value in list(metrics.items())[:_MOST_METRICS]]
    more = [f"and {len(metrics) - _MOST_METRICS} more (--json)"] if len(metrics) > _MOST_METRICS else []
    rows.append(("metrics", ", ".join(shown + more) or "none were logged"))
    git, packages = _mapping(told, "git"), _mapping(told, "packages")
    if commit := git.get("commit"):
        changed = ", with changes that are not committed" if git.get("dirty") else ""
        rows.append(("code", f"{str(commit)[:12]}{changed}"))
    rows.append(("command", command_line(told.get("command"))))
    rows.append(("host", str(told.get("host") or "")))
    rows.append(("with", ", ".join(f"{name} {packages[name]}" for name in _SHOWN_PACKAGES if name in packages)))
    return [(name, value) for name, value in rows if value]


def _mapping(fields: dict[str, Any], name: str) -> dict[str, Any]:
    found = fields.get(name)
    return found if isinstance(found, dict) else {}


def _parts(shown: Shown) -> Table:
    table = _table("part", "size", "", "what is in it")
    for part in shown.parts:
        share = f"{part.size_bytes / shown.size_bytes:.0%}" if shown.size_bytes else ""
        table.add_row(Text(part.name), decimal(part.size_bytes), share, Text(part.what, "dim"))
    table.add_row(Text("all", "bold"), Text(decimal(shown.size_bytes), "bold"))
    return table


def _compared(shown: Shown) -> str:
    """What a file of the weights alone would be, beside this."""
    weights = decimal(shown.weights_bytes)
    if not shown.can_continue and not shown.problems:
        return f"The state that training goes on from was taken away (Keep(thin_after=...)); {weights} of weights stay."
    number = f", of {shown.num_parameters:,} numbers" if shown.num_parameters else ""
    times = f" A checkpoint that training can go on from takes {shown.weights_files:.3g} times that."
    return f"The weights alone take {weights}{number}.{times if shown.weights_files else ''}"


def _groups(shown: Shown) -> Table:
    table = _table("tensors", "size", "number", "")
    for group in shown.groups[:_MOST_GROUPS]:
        name = ": ".join(word for word in (group.part, group.place) if word)
        table.add_row(Text(name), decimal(group.size_bytes), f"{group.num_tensors:,}")
    return table


def _table(*names: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column, name in enumerate(names):
        table.add_column(name, justify="right" if 0 < column < 3 else "left")
    return table
