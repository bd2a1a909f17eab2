"""The options of ``exact-resume ls``, and the table that it prints."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.filesize import decimal
from rich.segment import Segment, Segments
from rich.style import Style
from rich.text import Text

from resume_core.cli.exits import answering
from resume_core.cli.options import AsJson, Scratch, StorageOptions, parse_storage_options
from resume_core.cli.progress import busy
from resume_core.cli.words import age, first_sentence, number

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
    columns = _columns(best=found.best, has_tiers=len({tier for one in shown for tier in one.tiers}) > 1)
    cells = {one.path: [text(one) for text in columns.values()] for one in shown}
    # over all attempts, so that they stand below one another
    widths = [max(map(len, column)) for column in zip(columns, *cells.values(), strict=True)]
    console.print(Text(found.url, "bold"))
    for attempt in found.attempts:
        console.print(_heading(attempt, is_newest=attempt is found.attempts[0]))
        if attempt.checkpoints:
            # as it is: a table of rich takes a second for two thousand rows, and cuts names where nobody looks on
            console.print(Segments(_table(attempt, columns, cells, widths)), crop=False, end="")
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
        parts.append(cause + (f" ({first_sentence(told['why'])})" if told["why"] else ""))
    text.append("  " + ", ".join(parts), "default not bold")
    return text.append(f"; {attempt.diverged['text']}", "bold red") if attempt.diverged else text


def _columns(*, best: str | None, has_tiers: bool) -> dict[str, Callable[[CheckpointListed], str]]:
    """What gives each column its text."""
    texts: dict[str, Callable[[CheckpointListed], str]] = {
        "": lambda one: "  " + one.path.rpartition("/")[2],
        "step": lambda one: _number(one.step),
        "epoch": lambda one: _number(one.epoch),
        "batch": lambda one: _number(one.batch),
        "age": lambda one: age(one.time),
        "size": lambda one: "" if one.size_bytes is None else decimal(one.size_bytes),
        "saved for": lambda one: one.reason or "",
    }
    if best is not None:
        texts |= {best: lambda one: "" if one.metric is None else number(one.metric)}
    return texts | {"tiers": lambda one: str(len(one.tiers))} if has_tiers else texts


def _table(
    attempt: AttemptListed, columns: Iterable[str], cells: Mapping[str, list[str]], widths: list[int]
) -> Iterator[Segment]:
    justify = [str.ljust if name in _WORDS else str.rjust for name in columns]

    def line(row: Iterable[str]) -> str:
        return "".join(f"{fit(cell, width)}  " for fit, cell, width in zip(justify, row, widths, strict=True))

    last = "kept by" if any(one.kept_by is not None for one in attempt.checkpoints) else ""
    yield Segment(f"{line(columns)}{last}".rstrip() + "\n", Style(bold=True))
    for one in attempt.checkpoints:
        state, style = _state(one)
        yield Segment(line(cells[one.path]))
        yield Segment(state + "\n", style)


def _number(value: int | None) -> str:
    return "" if value is None else str(value)


def _state(one: CheckpointListed) -> tuple[str, Style]:
    if one.state == "damaged":
        return f"damaged: {one.problem}", Style(bold=True, color="red")
    words = [one.state] if one.state != "committed" else []
    if one.off_line is not None:
        words.append(f"on no line: {one.off_line}")
    elif one.state == "committed" and not one.is_on_line:
        words.append("on no line")
    if one.kept_by is not None:
        words.append(", ".join(one.kept_by) or "no rule")
    return "; ".join(words), Style(dim=not one.is_on_line)
