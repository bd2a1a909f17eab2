"""The options of ``exact-resume report``. What reads and draws is imported when it runs."""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from resume_core.cli.exits import NO_ANSWER, answering, check_folder
from resume_core.cli.options import AsJson, StorageOptions, parse_storage_options
from resume_core.cli.progress import busy

if TYPE_CHECKING:
    from resume_core.cli.report.facts import Report

__all__ = ["report"]

_NEEDS = {"jinja2": "jinja2", "vl_convert": "vl-convert-python"}
_HEAD_BYTES = 4096


def report(
    url: Annotated[str, typer.Argument(help="A run's directory; local or a URL.")],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="The page to write; default: report.html, none with --json.", metavar="FILE"),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is no report.")] = False,
    as_json: AsJson = False,
    storage_options: StorageOptions = None,
) -> None:
    """Write a page about a run: its attempts, curves and saves, what interruptions cost, what was accepted and checked.

    The page is one file that needs no network. Nothing is written to the run's directory.

    Exit code 0: done. 1: the run is damaged. 2: there is none, or the page cannot be written.
    """
    options = parse_storage_options(storage_options)
    place = Path("report.html") if out is None and not as_json else out
    if place is not None:
        _check_needs()
    with answering("no report"):
        from resume_core.cli.report.facts import report as read

        if place is not None:
            _check_place(place, force=force)
        with busy("reading"):
            found = read(url, options)
        if place is not None:
            with busy("drawing"):
                _write(found, place)
    if as_json:
        typer.echo(json.dumps(found.as_json(), indent=1))
    if place is not None:
        typer.echo(f"the page is {place}", err=as_json)


def _check_needs() -> None:
    missing = [package for module, package in _NEEDS.items() if importlib.util.find_spec(module) is None]
    if missing:
        typer.echo(f'the page needs {", ".join(missing)}: pip install "exact-resume[report]"', err=True)
        raise typer.Exit(NO_ANSWER)


def _check_place(out: Path, *, force: bool) -> None:
    """A page of ours may be replaced; anything else is somebody's.

    Raises:
        FileExistsError: it is something else, and ``force`` is not given.
        NotADirectoryError: there is no folder for it.
    """
    from resume_core.cli.report.page import GENERATOR

    check_folder(out)
    if out.exists() and not force:
        with out.open("rb") as file:
            if f'name="generator" content="{GENERATOR}"'.encode() not in file.read(_HEAD_BYTES):
                raise FileExistsError(f"{out} is there and is no report: --force replaces it")


def _write(found: Report, out: Path) -> None:
    """Whole, or not at all."""
    from resume_core.cli.report.page import as_page

    page = as_page(found)
    beside = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    try:
        beside.write_text(page, encoding="utf-8")
        os.replace(beside, out)
    finally:
        beside.unlink(missing_ok=True)
