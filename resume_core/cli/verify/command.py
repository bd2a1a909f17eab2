"""The options of ``exact-resume verify``, and what it prints."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import MofNCompleteColumn
from rich.table import Table

from resume_core.cli.exits import BAD, GOOD, NO_ANSWER, answering
from resume_core.cli.names import CheckpointName
from resume_core.cli.options import AsJson, StorageOptions, parse_storage_options
from resume_core.cli.progress import bar

if TYPE_CHECKING:
    from resume_core.cli.verify.check import Copy

__all__ = ["verify"]

_WHOLE, _DAMAGED, _GONE, _UNREAD = "whole", "damaged", "deleted meanwhile", "not readable"
_PARTLY = "deleted in part, or damaged"
_STYLES = {_WHOLE: "green", _DAMAGED: "bold red", _GONE: "dim", _UNREAD: "yellow", _PARTLY: "yellow"}


def verify(
    url: Annotated[str, typer.Argument(help="A run's directory, an attempt in it, or one checkpoint; local or a URL.")],
    name: CheckpointName = None,
    scratch: Annotated[str | None, typer.Option(help="The run's scratch, whose copies are checked too.")] = None,
    newest: Annotated[bool, typer.Option("--newest", help="Check the newest checkpoint alone.")] = False,
    as_json: AsJson = False,
    storage_options: StorageOptions = None,
) -> None:
    """Read every byte of a run's checkpoints, on every tier, and compare it with its digest. Nothing is written.

    Of an attempt that is named, all; of a checkpoint, that one.

    Exit code 0: all are whole. 1: something is damaged. 2: there is nothing to check, or not all of it can be read.
    """
    options = parse_storage_options(storage_options)
    console = Console(highlight=False, stderr=as_json)
    with answering("nothing was checked"):
        from resume_core.cli.verify.check import copies

        found, damaged, missing = copies(url, name, scratch=scratch, options=options)
        if newest:
            found = [copy for copy in found if copy.ref == found[0].ref]
            missing = [one for one in missing if one.is_newest]
        rows = [_row(error.path, "", 0, _DAMAGED, str(error)) for error in damaged]
        rows += [_row(one.ref.path, one.url, 0, _DAMAGED if one.is_newest else _PARTLY, str(one)) for one in missing]
        rows += _checked(found, console)
    if as_json:
        typer.echo(json.dumps({"url": url, "copies": rows}, indent=1))
    else:
        _print(rows, console)
    states = {row["state"] for row in rows}
    raise typer.Exit(BAD if _DAMAGED in states else NO_ANSWER if _UNREAD in states else GOOD)


def _checked(found: list[Copy], console: Console) -> list[dict[str, Any]]:
    with bar(console, MofNCompleteColumn()) as progress:
        task = progress.add_task("", total=len(found))
        rows = []
        for copy in found:
            progress.update(task, description=copy.ref.path)
            rows.append(_check(copy))
            progress.advance(task)
    return rows


def _check(copy: Copy) -> dict[str, Any]:
    from resume_core.errors import CheckpointNotFoundError, CorruptCheckpointError

    place = copy.ref.path, copy.store.url
    try:
        size_bytes = copy.check()
    except CheckpointNotFoundError:
        return _row(*place, 0, _GONE)
    except CorruptCheckpointError as error:
        return _row(*place, 0, _DAMAGED, str(error))
    except OSError as error:  # the store refused, which says nothing of what lies there
        return _row(*place, 0, _UNREAD, str(error))
    return _row(*place, size_bytes, _WHOLE) | {"weights_only": copy.weights_only}


def _row(path: str, store: str, size_bytes: int, state: str, problem: str | None = None) -> dict[str, Any]:
    return {"path": path, "store": store, "size_bytes": size_bytes, "state": state, "problem": problem}


def _print(rows: list[dict[str, Any]], console: Console) -> None:
    from rich.filesize import decimal
    from rich.text import Text

    has_tiers = len({row["store"] for row in rows if row["store"]}) > 1
    table = Table(box=None, pad_edge=False)
    table.add_column("checkpoint", no_wrap=True)
    if has_tiers:
        table.add_column("tier", overflow="fold")  # it gives way: names and states are what people look for
    table.add_column("size", no_wrap=True)
    table.add_column("state")
    for row in rows:
        size = decimal(row["size_bytes"]) if row["size_bytes"] else ""
        what = row["state"] + (", weights only" if row.get("weights_only") else "")
        tier = [Text(row["store"])] if has_tiers else []
        table.add_row(Text(row["path"]), *tier, size, Text(what, _STYLES[row["state"]]))
    console.print(table)
    for row in rows:
        if row["problem"]:
            console.print(Text(f"- {row['problem']}"))
    counts = Counter(row["state"] for row in rows)
    num = len(rows) - counts[_PARTLY]
    said = [f"{counts[state]} of {num} {state}" for state in (_DAMAGED, _UNREAD, _GONE) if counts[state]]
    partly = f"; {counts[_PARTLY]} {_PARTLY}" if counts[_PARTLY] else ""
    console.print((", ".join(said) or f"{num} of {num} whole") + partly)
