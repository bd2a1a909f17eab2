"""The options of ``exact-resume prune``, what it lists, and how it asks."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.filesize import decimal
from rich.progress import MofNCompleteColumn
from rich.table import Table
from rich.text import Text

from resume_core.cli.exits import BAD, NO_ANSWER, answering
from resume_core.cli.options import AsJson, StorageOptions, parse_storage_options
from resume_core.cli.progress import bar, busy
from resume_core.cli.words import age

if TYPE_CHECKING:
    from resume_core.cli.prune.doomed import Prune

__all__ = ["prune"]

_MOST = 30
_KEEP = "What stays; default: what the run has recorded"


def _rule(help: str, metavar: str, least: int | None = None) -> Any:
    return typer.Option(help=help, metavar=metavar, min=least, rich_help_panel=_KEEP, show_default=False)


def prune(
    url: Annotated[str, typer.Argument(help="A run's directory; local or a URL.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List what would go, and delete nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    most: Annotated[int, typer.Option("--most", "-n", min=1, help="Rows to show of each list.")] = _MOST,
    last: Annotated[int | None, _rule("Keep(last=).", "N", 1)] = None,
    every_steps: Annotated[int | None, _rule("Keep(every_steps=).", "N", 1)] = None,
    every_epochs: Annotated[int | None, _rule("Keep(every_epochs=).", "N", 1)] = None,
    best: Annotated[str | None, _rule("Keep(best=).", "METRIC")] = None,
    mode: Annotated[str | None, _rule("Keep(mode=).", "min|max")] = None,
    thin_after: Annotated[int | None, _rule("Keep(thin_after=).", "N", 1)] = None,
    as_json: AsJson = False,
    storage_options: StorageOptions = None,
) -> None:
    """Delete the checkpoints of a run that nothing keeps, by the rules by which training does it.

    First comes the list of what goes, and why; then you are asked. The newest checkpoint stays, and so does every file
    that is not a run's. A run may go on training meanwhile: a save in flight is left alone, and so is everything once
    a newer attempt starts.

    Exit code 0: done. 1: something could not be deleted, or you said no. 2: there is no run, or it cannot be read.
    """
    options = parse_storage_options(storage_options)
    rules = {"last": last, "every_steps": every_steps, "every_epochs": every_epochs, "best": best, "mode": mode}
    given = {name: value for name, value in {**rules, "thin_after": thin_after}.items() if value is not None}
    console = Console(highlight=False, stderr=as_json)
    with answering("nothing was pruned"):
        from resume_core.cli.prune.doomed import Prune

        with busy("reading"):
            look = Prune(url, options, given)
        _print(look, most, console)
        if dry_run or not look.doomed:
            _end(look, as_json=as_json, done=None)
            return
        _ask(look, console, yes=yes)
        done = _delete(look, console)
    _end(look, as_json=as_json, done=done)
    for failure in done["failures"]:
        console.print(Text(failure, "red"))
    if done["failures"]:
        raise typer.Exit(BAD)


def _print(look: Prune, most: int, console: Console) -> None:
    left_out = (None,) if look.keep.best else (None, look.keep.mode)
    rules = ", ".join(f"{name}={value!r}" for name, value in vars(look.keep).items() if value not in left_out)
    console.print(Text(look.url, "bold").append(f"  Keep({rules}), newest attempt {look.attempt}", "not bold"))
    if look.alive_s is not None:
        console.print(
            Text(
                f"{look.attempt} was heard of {look.alive_s:.0f} s ago: it may be training, and prunes by itself",
                "yellow",
            )
        )
    _print_stays("stays", "kept by", [(path, ", ".join(rules)) for path, rules in look.stays], most, console)
    if look.off_line:
        _print_stays("on no line", "stays because", look.off_line, most, console)
    for sentence in look.odd:
        console.print(Text(f"stays: {sentence}", "yellow"))
    if not look.doomed:
        console.print(Text("\nnothing to delete", "bold green"))
        return
    table = _table("goes", "step", "age", "frees", "why")
    for one in look.doomed[:most]:
        step = "" if one.step is None else str(one.step)
        table.add_row(Text(one.path), step, age(one.time), decimal(one.size_bytes), Text(one.why))
    console.print()
    console.print(table)
    if len(look.doomed) > most:
        console.print(Text(f"and {len(look.doomed) - most} more (-n {len(look.doomed)})", "dim"))
    freed = decimal(sum(one.size_bytes for one in look.doomed))
    console.print(Text(f"{len(look.doomed)} of {len(look.doomed) + _num_untouched(look)} go, {freed}", "bold"))


def _num_untouched(look: Prune) -> int:
    touched = {one.path for one in look.doomed}
    return sum(path not in touched for path, _ in [*look.stays, *look.off_line])


def _print_stays(first: str, last: str, rows: list[tuple[str, str]], most: int, console: Console) -> None:
    table = _table(first, "", "", "", last)
    for path, why in rows[:most]:
        table.add_row(Text(path), "", "", "", Text(why))
    console.print()
    console.print(table)
    if len(rows) > most:
        console.print(Text(f"and {len(rows) - most} more", "dim"))


def _table(first: str, *others: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column(first, overflow="fold")
    for column, name in enumerate(others):
        table.add_column(name, justify="left" if column == len(others) - 1 else "right")
    return table


def _ask(look: Prune, console: Console, *, yes: bool) -> None:
    if yes:
        return
    if not _can_ask():
        typer.echo("nothing was deleted: give --yes where nobody can be asked, or --dry-run", err=True)
        raise typer.Exit(NO_ANSWER)
    if not typer.confirm(f"Delete these {len(look.doomed)}?", err=True):
        typer.echo("nothing was deleted", err=True)
        raise typer.Exit(BAD)


def _can_ask() -> bool:
    return sys.stdin.isatty()


def _delete(look: Prune, console: Console) -> dict[str, list[str]]:
    """What became of it. A stop in between leaves every checkpoint whole, or gone."""
    done: dict[str, list[str]] = {"deleted": [], "thinned": [], "failures": []}
    try:
        with bar(console, MofNCompleteColumn()) as progress:
            task = progress.add_task("deleting", total=len(look.doomed))
            for pruned in look.delete():
                for name, found in done.items():
                    found += getattr(pruned, name)
                progress.advance(task)
    finally:
        said = f"{len(done['deleted'])} deleted" + (f", {len(done['thinned'])} thinned" if done["thinned"] else "")
        console.print(Text(f"{said}, of {len(look.doomed)}"))
    return done


def _end(look: Prune, *, as_json: bool, done: dict[str, list[str]] | None) -> None:
    if as_json:
        typer.echo(json.dumps(look.as_json() | {"done": done}, indent=1))
