"""Jobs of the scripts with a Trainer; everything else is as in accelerate_runs.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import accelerate_runs
from harness import Job


def new_job(root: Path, name: str = "whole", **options: Any) -> Job:
    """A job that saves at each boundary; fields of `Job` among the options are its own."""
    return accelerate_runs.new_job(root, name, **{"script": "trainer", **options})


def arguments(**chosen: Any) -> dict[str, Any]:
    """As an option of a job: arguments of TrainingArguments."""
    return {"arguments": chosen}
