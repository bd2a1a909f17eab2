"""The options of ``exact-resume ls``, and the table that it prints."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from resume_core.cli.exits import answering
from resume_core.cli.options import AsJson, Scratch, StorageOptions, parse_storage_options
from resume_core.cli.progress import busy
from resume_core.cli.words import age

if TYPE_CHECKING:
    from resume_core.cli.ls.listing import AttemptListed, CheckpointListed, Listing

__all__ = ["ls"]

_MOST = 30
_WORDS = ("", "saved for")


def ls(
    url: Annotated[str, typer.Argument(help="A run's directory; local or a URL.")],
    scratch: Scratch = None,
    most: Annotated[int, typer.Option("--most", "-n", min=1, help="Checkpoints to show, the newest.")] = _MOST,
    everything: Annotated[bool, typer.Option("--all", help="Show all, each with the rules that keep it.")] = False,
    as_json: AsJson = False,
    storage_options: StorageOptions = None,
) -> None:
    """List the attempts of a run and their checkpoints, the newest first. Nothing is written.

    Exit code 0: there is a run. 2: there is none, or it cannot be read.
    """
    options = parse_storage_options(storage_options)
    with answering("nothing to list"), busy("reading"):
        from resume_core.cli.ls.listing import listing

        found = listing(url, scratch=scratch, options=options, most=None if everything else most)
    if as_json:
        typer.echo(json.dumps(found.as_json(), indent=1))
    else:
        _print(found, Console(highlight=False))


def _print(found: Listing, console: Console) -> None:
    shown = [one for attempt in found.attempts for one in attempt.checkpoints]
    has_tiers = len({tier for one in shown for tier in one.tiers}) > 1
    columns = _columns(shown, has_tiers=has_tiers)
    console.print(Text(found.url, "bold"))
    for attempt in found.attempts:
        console.print(_heading(attempt, is_newest=attempt is found.attempts[0]))
        if attempt.checkpoints:
            console.print(_table(attempt, columns))
        elif not attempt.num_not_shown:
            console.print(Text("  no checkpoint: none was saved, or they were deleted (Keep, prune)", "dim"))
        if attempt.num_not_shown:
            console.print(Text(f"  and {attempt.num_not_shown} older (--all)", "dim"))
    for problem in found.damaged:
        console.print(Text(f"damaged: {problem}", "bold red"))


def _heading(attempt: AttemptListed, *, is_newest: bool) -> Text:
    text = Text(f"\n{attempt.name}", "bold cyan")
    told = attempt.history
    parts = [f"from {attempt.resumed_from}" if attempt.resumed_from else "began anew"]
    if told is not None:
        cause = told["cause"] or ("running, or killed" if is_newest else "killed")
        heard = "heard of last at" if told["cause"] is None else "to"
        parts += [f"on {told['host']}", f"{heard} step {told['step']}, batch {told['batch']}"]
        parts.append(cause + (f" ({told['why']})" if told["why"] else ""))
    return text.append("  " + ", ".join(parts), "default not bold")


def _columns(
    shown: list[CheckpointListed], *, has_tiers: bool
) -> dict[str, tuple[Callable[[CheckpointListed], str], int]]:
    """What gives each column its text, and its width over all attempts, so that they stand below one another."""
    texts: dict[str, Callable[[CheckpointListed], str]] = {
        "": lambda one: "  " + one.path.rpartition("/")[2],
        "step": lambda one: _number(one.step),
        "epoch": lambda one: _number(one.epoch),
        "batch": lambda one: _number(one.batch),
        "age": lambda one: age(one.time),
        "size": lambda one: "" if one.size_bytes is None else decimal(one.size_bytes),
        "saved for": lambda one: one.reason or "",
    }
    if has_tiers:
        texts["tiers"] = lambda one: str(len(one.tiers))
    return {name: (text, max([len(name), *map(len, map(text, shown))])) for name, text in texts.items()}


def _table(attempt: AttemptListed, columns: dict[str, tuple[Callable[[CheckpointListed], str], int]]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name, (_, width) in columns.items():
        table.add_column(name, justify="left" if name in _WORDS else "right", min_width=width, no_wrap=True)
    table.add_column("kept by" if any(one.kept_by is not None for one in attempt.checkpoints) else "")
    for one in attempt.checkpoints:
        table.add_row(*(Text(text(one)) for text, _ in columns.values()), _state(one))
    return table


def _number(value: int | None) -> str:
    return "" if value is None else str(value)


def _state(one: CheckpointListed) -> Text:
    if one.state == "damaged":
        return Text(f"damaged: {one.problem}", "bold red")
    words = [one.state] if one.state != "whole" else []
    if one.state == "whole" and not one.is_on_line:
        words.append("on no line")
    if one.kept_by is not None:
        words.append(", ".join(one.kept_by) or "no rule")
    return Text("; ".join(words), "" if one.is_on_line else "dim")
