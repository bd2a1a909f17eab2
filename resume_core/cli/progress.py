"""How far long work has come: on a terminal, and gone when it is done."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

__all__ = ["bar", "busy"]


def bar(console: Console, count: ProgressColumn) -> Progress:
    """A bar with a description, that counts as ``count`` shows it; nothing where nobody watches."""
    columns = (TextColumn("{task.description}"), BarColumn(), count, TimeRemainingColumn())
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


@contextmanager
def busy(what: str) -> Iterator[None]:
    """Says that something goes on whose end nobody knows, and for how long it has."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        progress.add_task(what, total=None)
        yield
