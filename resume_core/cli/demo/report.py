"""What the demo shows: a table, a sentence, ``demo.json`` and ``demo.png``."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from resume_core.cli.demo.compare import Row, Run, coverage, done_again, effective
from resume_core.cli.demo.folder import JSON, PLOT

__all__ = ["Report", "print_report", "verdict", "write_report"]


@dataclass(frozen=True)
class Report:
    """The outcome of a demo.

    Attributes:
        plugin: False for stock Lightning.
        reference: the run that was never killed.
        interrupted: the other.
        rows: their comparison.
    """

    plugin: bool
    reference: Run
    interrupted: Run
    rows: list[Row]

    @property
    def differences(self) -> list[str]:
        """The names of what should be equal and is not."""
        return [row.name for row in self.rows if row.equal is False]

    @property
    def identical(self) -> bool:
        """Whether everything that should be equal is."""
        return not self.differences
