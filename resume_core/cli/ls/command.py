"""The options of ``exact-resume ls``, and the table that it prints."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from resume_core.cli.exits import answering
from resume_core.cli.options import AsJson, Scratch, StorageOptions, parse_storage_options
from resume_core.cli.words import age

if TYPE_CHECKING:
    from resume_core.cli.ls.listing import AttemptListed, CheckpointListed, Listing

__all__ = ["ls"]

_MOST = 30
_CAUSES = {None: "running, or killed"}


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
    with answering("nothing to list"):
        from resume_core.cli.ls.listing import listing

        found = listing(url, scratch=scratch, options=options, most=None if everything else most)
    if as_json:
        typer.echo(json.dumps(found.as_json(), indent=1))
    else:
        _print(found, Console(highlight=False))


def _print(found: Listing, console: Console) -> None:
    tiers = {tier for attempt in found.attempts for one in attempt.checkpoints for tier in one.tiers}
    console.print(Text(found.url, "bold"))
    for attempt in found.attempts:
        console.print(_heading(attempt))
        if attempt.checkpoints:
            console.print(_table(attempt, has_tiers=len(tiers) > 1))
        if attempt.num_not_shown:
            console.print(Text(f"  and {attempt.num_not_shown} older (--all)", "dim"))
    for problem in found.damaged:
        console.print(Text(f"damaged: {problem}", "bold red"))


def _heading(attempt: AttemptListed) -> Text:
    text = Text(f"\n{attempt.name}", "bold cyan")
    told = attempt.history
    parts = [f"from {attempt.resumed_from}" if attempt.resumed_from else "began anew"]
    if told is not None:
        parts += [f"on {told['host']}", f"to batch {told['batch']}, step {told['step']}"]
        parts.append(_CAUSES.get(told["cause"], told["cause"]) + (f" ({told['why']})" if told["why"] else ""))
    return text.append("  " + ", ".join(parts), "default not bold")


def _table(attempt: AttemptListed, *, has_tiers: bool) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name, justify in (("", "left"), ("step", "right"), ("epoch", "right"), ("batch", "right"), ("age", "right")):
        table.add_column(name, justify=justify)  # type: ignore[arg-type]
    table.add_column("size", justify="right")
    table.add_column("saved for")
    if has_tiers:
        table.add_column("tiers", justify="right")
    table.add_column("")
    for one in attempt.checkpoints:
        cells = [Text("  " + one.path.rpartition("/")[2])]
        cells += [Text("" if value is None else str(value)) for value in (one.step, one.epoch, one.batch)]
        cells += [Text(age(one.time)), Text("" if one.size_bytes is None else decimal(one.size_bytes))]
        cells += [Text(one.reason or ""), *([Text(str(len(one.tiers)))] if has_tiers else []), _state(one)]
        table.add_row(*cells)
    return table


def _state(one: CheckpointListed) -> Text:
    if one.state == "damaged":
        return Text(f"damaged: {one.problem}", "bold red")
    words = [one.state] if one.state != "whole" else []
    if one.state == "whole" and not one.is_on_line:
        words.append("on no line")
    if one.kept_by is not None:
        words.append("kept by " + ", ".join(one.kept_by) if one.kept_by else "kept by no rule")
    return Text("; ".join(words), "" if one.is_on_line else "dim")
