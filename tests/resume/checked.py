"""A run of each framework with one save in its middle, so that what follows a resume can be compared."""

from __future__ import annotations

from pathlib import Path

import accelerate_runs
import harness
from harness import Job

SAVED = 5  # of the batches of the whole run


def whole_job(root: Path, framework: str) -> Job:
    """Saves once in the middle; what follows is recorded behind that."""
    script = {"lightning": "small", "accelerate": "small", "trainer": "trainer"}[framework]
    return Job(
        str(root), "whole", str(root / "ckpt"), script=script, save_steps=SAVED, keep=99, settle=True,
        num_samples=40, epochs=1, options={"scaler": True, "val": False},
    )  # fmt: skip


def train(job: Job, framework: str) -> None:
    if framework == "lightning":
        harness.train(job)
    else:
        accelerate_runs.train(job)
