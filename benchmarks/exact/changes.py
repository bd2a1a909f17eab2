"""Something is another thing when the run is started again: who says so?"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from typing import Any

from exact.cases import OTHER_SEED, cut_at
from exact.damage import CASE
from exact.job import Job, lines
from exact.processes import Failed, Start

CHANGES: Mapping[str, Mapping[str, Any]] = {
    "batch size": {"batch_size": 8},
    "learning rate": {"rate": 2e-2},
    "accumulation": {"accumulate": 2},
    "number of samples": {"num_samples": 60},
    "shuffle": {"order": "as it lies"},
    "seed": {"seed": OTHER_SEED},
    "dropout": {"dropout": 0.1},
}
REFUSED, WARNED, SILENT = "refused", "warned", "silent"
_VARYING = re.compile(r"0x[0-9a-f]+|attempt-\S+|/\S+|[0-9][0-9a-f.e-]*")


def changed_starts(tool: str, folder: str) -> dict[str, tuple[str, str]]:
    """By what was changed: whether it was noticed, and the words.

    Raises:
        Failed: a start without a change did not do what it must.
    """
    job = Job(tool, f"{folder}/killed", allow_seed=False, **CASE.job)
    cut_at(job.but(pause_at=CASE.cuts[0]), CASE.saved[0])
    usual = _start(_copied(job, folder, {}))
    return {name: _noticed(_copied(job, folder, change), usual) for name, change in CHANGES.items()}


def _copied(job: Job, folder: str, change: Mapping[str, Any]) -> Job:
    again = f"{folder}/again"
    shutil.rmtree(again, ignore_errors=True)
    shutil.copytree(job.folder, again)
    return job.but(folder=again, name="start-2", **change)


def _start(job: Job) -> set[str]:
    """What it said, without what is another thing each time."""
    Start(job).finish()
    return {_VARYING.sub("#", line).strip() for line in job.path("log").read_text().splitlines()}


def _noticed(job: Job, usual: set[str]) -> tuple[str, str]:
    try:
        new = _start(job) - usual
    except Failed as error:
        began = any("ids" in line for line in lines(job))
        return ("failed later" if began else REFUSED), str(error)[:400]
    return (WARNED, " / ".join(sorted(new))[:400]) if new else (SILENT, "")
