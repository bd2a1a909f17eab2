"""What the exit codes of all commands mean, and which error gives which."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import typer

from resume_core.errors import CorruptCheckpointError, ResumeError

__all__ = ["BAD", "EXIT_CODES", "GOOD", "NO_ANSWER", "answering", "check_folder"]

GOOD = 0
BAD = 1
NO_ANSWER = 2

EXIT_CODES = (
    "Exit codes of all commands: 0, done, and what was asked about is as it should be; 1, it is not (damaged, "
    "different); 2, there is no answer (no such run, it cannot be read, the options make no sense); 130, Ctrl-C."
)


@contextmanager
def answering(what_not: str) -> Iterator[None]:
    """End the command with a message and an exit code where it cannot go on.

    Args:
        what_not: how the message begins, as in ``"nothing was checked"``.

    Raises:
        typer.Exit: in place of an error that the user can do something about.
    """
    try:
        yield
    except (ResumeError, OSError, ValueError, ImportError) as error:
        typer.echo(f"{what_not}: {error}", err=True)
        raise typer.Exit(BAD if isinstance(error, CorruptCheckpointError) else NO_ANSWER) from error


def check_folder(out: Path) -> None:
    """A file can only be written into a folder.

    Raises:
        NotADirectoryError: its parent is none, or does not exist.
    """
    if not out.parent.is_dir():
        is_there = "is no folder" if out.parent.exists() else "does not exist"
        raise NotADirectoryError(f"{out} cannot be written: {out.parent} {is_there}")
