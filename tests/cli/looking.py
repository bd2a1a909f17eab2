"""What the tests of commands that look at a run share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from resume_core.cli import app


def said(command: str, *arguments: str) -> tuple[int, str]:
    """The exit code of a command, and what it prints on a wide terminal."""
    found = CliRunner().invoke(app, [command, *arguments], env={"COLUMNS": "160"})
    return found.exit_code, found.stdout + found.stderr


def told(command: str, *arguments: str, code: int) -> Any:
    """What a command prints with ``--json``, where it ends with that exit code."""
    found = CliRunner().invoke(app, [command, *arguments, "--json"])
    assert found.exit_code == code, found.output
    return json.loads(found.stdout)


def folder(run: str, step: int) -> Path:
    """That of a checkpoint."""
    return next(Path(run).glob(f"*/step-{step:09d}"))
