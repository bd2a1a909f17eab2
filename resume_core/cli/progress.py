"""How far long work has come: on a terminal, and gone when it is done."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn

__all__ = ["bar"]


def bar(console: Console, count: ProgressColumn) -> Progress:
    """A bar with a description, that counts as ``count`` shows it; nothing where nobody watches."""
    columns = (TextColumn("{task.description}"), BarColumn(), count, TimeRemainingColumn())
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
