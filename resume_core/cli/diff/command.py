"""The options of ``exact-resume diff``, and what it prints."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import DownloadColumn, Progress
from rich.table import Table
from rich.text import Text

from resume_core.cli.exits import BAD, GOOD, answering
from resume_core.cli.options import AsJson, StorageOptions, parse_storage_options
from resume_core.cli.progress import bar
from resume_core.cli.words import folded, place

if TYPE_CHECKING:
    from resume_core.cli.diff.compare import Compared, Count
    from resume_core.cli.diff.leaves import Pair
    from resume_core.cli.diff.values import Change

__all__ = ["diff"]

_MOST = 10


def diff(
    a: Annotated[
        str, typer.Argument(metavar="A", help="A checkpoint, or a run or an attempt of which the newest is taken.")
    ],
    b: Annotated[
        str,
        typer.Argument(metavar="B", help="Another one; the name of an attempt or a checkpoint in A's run will do."),
    ],
    c: Annotated[
        str | None, typer.Argument(metavar="C", help="With three, A is a run, and the others are names in it.")
    ] = None,
    most: Annotated[int, typer.Option("--most", "-n", min=1, help="Rows of each table.")] = _MOST,
    values: Annotated[bool, typer.Option("--values/--no-values", help="Compare the elements of tensors.")] = True,
    as_json: AsJson = False,
    storage_options: StorageOptions = None,
) -> None:
    """Say what is different between two checkpoints: configuration, structure, values. Nothing is written.

    Chunks with the same digest are not read.

    Other folders, hosts, times and packages of a run are information.

    Exit code 0: training would go on alike from both. 1: they are different, or one is damaged. 2: there is no answer.
    """
    options = parse_storage_options(storage_options)
    console = Console(highlight=False, stderr=as_json)
    with answering("nothing was compared"):
        from resume_core.cli.diff.compare import compare, sources
        from resume_core.cli.source import reading

        found = sources(a, b, c, options=options)
        with reading(*found), bar(console, DownloadColumn()) if values else nullcontext() as progress:
            compared = compare(*found, _teller(progress) if progress else None)
    if as_json:
        typer.echo(json.dumps(compared.as_json(), indent=1))
    else:
        _print(compared, most, console)
    raise typer.Exit(GOOD if compared.is_same else BAD)


def _teller(progress: Progress) -> Any:
    tasks: dict[str, Any] = {}

    def tell(file: str, done: int, total: int) -> None:
        if file not in tasks:
            tasks[file] = progress.add_task(file, total=total)
        progress.update(tasks[file], completed=done)

    return tell


def _print(compared: Compared, most: int, console: Console) -> None:
    for letter, side in (("A", compared.a), ("B", compared.b)):
        text = Text(f"{letter}  ", "bold").append(side["path"], "bold cyan").append(f"  {place(side['progress'])}")
        text.append("  weights only" if side["weights_only"] else "", "yellow")
        console.print(text.append(f"\n   {side['url']}", "dim"))
    console.print()
    alike = "training would go on alike from both"
    if compared.is_same:
        what = "what differs is information" if compared.plain or compared.config else "no difference"
        console.print(Text(f"{what}: {alike}", "bold green"))
    for part, count in compared.counts.items():
        console.print(_counted(part, count))
    console.print()
    marks = {"structure": "* ", "run": "", "info": ""}
    facts = [(one["severity"], marks[one["severity"]] + one["name"], *_values(one)) for one in compared.config]
    _print_rows("configuration", (row[1:] for row in facts if row[0] != "info"), most, console)
    _print_rows("structure", map(_row, compared.structure), most, console)
    state = [_row(pair) for pair in compared.plain if not pair.is_information]
    _print_rows("training state", state, most, console)
    for part, found in (compared.tensors or {}).items():
        _print_changes(part, found, most, console)
    if compared.files:
        console.print(Text("files that are not the same: ", "bold").append(_named(compared), "default not bold"))
        console.print()
    surroundings = [row[1:] for row in facts if row[0] == "info"]
    surroundings += [_row(pair) for pair in compared.plain if pair.is_information]
    _print_rows("surroundings, which alter no run", surroundings, most, console)


_NUMBERS_WIDTH = 56  # what the columns in front of a tensor's name take, and its type behind it
_PARTS = {"model": "weights", "training": "optimizer and other state"}


def _counted(part: str, count: Count) -> Text:
    """A sentence: whether the tensors of a part are equal."""
    name, num = _PARTS[part], count.num_tensors
    if count.num_differ is None:
        return Text(f"{name}: not the same bytes; the elements of {num:,} tensors were not compared", "yellow")
    if not count.num_differ:
        return Text(f"{name} equal: {'the one tensor' if num == 1 else f'all {num:,} tensors'}", "green")
    return Text(f"{name}: {count.num_differ:,} of {num:,} tensors differ", "bold red")


def _row(pair: Pair) -> tuple[str, str, str]:
    return pair.name, pair.a, pair.b


def _values(fact: dict[str, Any]) -> list[str]:
    sides = ("saved", "current")
    return [json.dumps(fact[side], ensure_ascii=False) if side in fact else "(absent)" for side in sides]


def _named(compared: Compared) -> str:
    gone = {"(absent)": " (only B)"}, {"(absent)": " (only A)"}
    return ", ".join(pair.name + gone[0].get(pair.a, "") + gone[1].get(pair.b, "") for pair in compared.files)


def _print_rows(title: str, rows: Iterable[Sequence[str]], most: int, console: Console) -> None:
    """Names, and what both sides have."""
    width = console.width // 3
    cells = [[Text(folded(name, width)), *map(Text, values)] for name, *values in rows]
    _print_table(title, ("", "A", "B"), cells, most, console)


def _print_changes(part: str, found: list[Change], most: int, console: Console) -> None:
    rows, width = [], console.width - _NUMBERS_WIDTH
    for change in found[:most]:
        share = "all" if change.num_changed == change.num_elements else f"{change.num_changed:,}"
        sizes = ["not finite" if size is None else f"{size:.3g}" for size in (change.relative, change.largest)]
        name = Text(folded(change.name.removeprefix(f"{part}."), width)).append(f"  {change.kind}", "dim")
        rows.append([*map(Text, sizes), Text(f"{share} of {change.num_elements:,}"), name])
    rows += [[]] * (len(found) - len(rows))
    columns = ("relative", "largest", "elements", "")
    _print_table(f"{part}: the tensors that changed most", columns, rows, most, console)


def _print_table(title: str, columns: Sequence[str], rows: list[list[Text]], most: int, console: Console) -> None:
    if not rows:
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows[:most]:
        table.add_row(*row)
    console.print(Text(title, "bold"))
    console.print(table)
    if len(rows) > most:
        console.print(Text(f"and {len(rows) - most} more (-n {len(rows)})", "dim"))
    console.print()
