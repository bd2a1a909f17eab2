"""A file of the newest checkpoint is torn, or a bit in it is flipped: who notices, and what then?"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from exact.cases import CASES, committed, cut_at, start_again
from exact.compare import trained
from exact.job import Job
from exact.processes import Failed, Start
from exact.tools import is_ours

CASE = CASES["plain"]
PASSED_OVER, STOPPED, NO_EFFECT, SILENT = "passed over", "stopped", "no effect", "silent"


def _tear(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _flip(path: Path, quarter: int) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) * quarter // 4] ^= 1
    path.write_bytes(data)


DAMAGES: Sequence[tuple[str, Callable[[Path], None]]] = (
    ("torn", _tear),
    *(("flipped", partial(_flip, quarter=quarter)) for quarter in (1, 2, 3)),
)


def newest_files(job: Job) -> list[Path]:
    """Those of the checkpoint that a start would go on from, relative to the folder of checkpoints."""
    ours = is_ours(job)
    pattern = "attempt-*/step-*/manifest.json" if ours else "*"
    places = [path for path in job.checkpoints.glob(pattern) if ours or path.name[-1].isdigit() or path.is_file()]
    newest = max(places, key=lambda path: path.stat().st_mtime_ns)
    folder = newest.parent if ours else newest
    files = sorted(folder.rglob("*")) if folder.is_dir() else [folder]
    return [path.relative_to(job.checkpoints) for path in files if path.is_file() and path.stat().st_size]


def damaged_starts(tool: str, folder: str) -> Iterator[tuple[str, str, str]]:
    """Of each file and each damage: its name, the damage, and what came of it.

    Raises:
        Failed: a start whose files are whole did not do what it must.
    """
    job = Job(tool, f"{folder}/killed", **CASE.job)
    cut_at(job.but(pause_at=CASE.cuts[0]), CASE.saved[0])
    newest = max(committed(job)) if is_ours(job) else CASE.saved[0]
    whole = _start(_copied(job, f"{folder}/whole"))
    for file in newest_files(job):
        for name, damage in DAMAGES:
            copy = _copied(job, f"{folder}/damaged")
            damage(copy.checkpoints / file)
            yield file.name, name, _outcome(copy, newest, whole)


def _copied(job: Job, folder: str) -> Job:
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(job.folder, folder)  # keeps the times of files
    return job.but(folder=folder, name="start-2")


def _start(job: Job) -> list[str]:
    start = Start(start_again(job, CASE))
    start.finish()
    return trained(start.jobs).parameters


def _outcome(job: Job, newest: int, whole: list[str]) -> str:
    start = Start(start_again(job, CASE))
    try:
        start.finish()
    except Failed:
        return STOPPED
    found = trained(start.jobs)
    if found.begins_at < newest:
        return PASSED_OVER
    return NO_EFFECT if found.parameters == whole else SILENT
