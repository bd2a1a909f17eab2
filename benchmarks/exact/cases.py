"""What happens to a run: where it is cut, and what it trains with."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from exact.compare import Observation, Trained, observe, trained
from exact.job import Job
from exact.processes import Failed, Start
from exact.tools import is_ours

SEED, OTHER_SEED = 7, 1234
NUM_TRIES, SAVED_S = 3, 15


@dataclass(frozen=True)
class Case:
    """One way to be interrupted.

    Attributes:
        title: in the tables.
        job: what differs from the plain job.
        cuts: batches done when it is killed, of each start but the last.
        saved: batches at the save before each cut.
        again: what differs in the starts after the first.
        terminated: SIGTERM instead of SIGKILL.
    """

    title: str
    job: Mapping[str, Any] = field(default_factory=dict)
    cuts: Sequence[int] = (24,)
    saved: Sequence[int] = (22,)
    again: Mapping[str, Any] = field(default_factory=dict)
    terminated: bool = False


CASES: Mapping[str, Case] = {
    "plain": Case("no workers"),
    "workers": Case("2 workers", {"workers": 2}),
    "persistent": Case("persistent workers", {"workers": 2, "persistent": True}),
    "seed": Case("other global seed", {"workers": 2}, again={"seed": OTHER_SEED}),
    "window": Case(
        "SIGTERM inside a window of 4",
        # nothing is random here, so that only gradients that were lost can make a difference
        {"accumulate": 4, "save_every": 3, "slow_s": 0.3, "order": "as it lies", "augmented": False, "dropout": 0.0},
        cuts=(26,),
        saved=(24,),
        terminated=True,
    ),
    "boundary": Case("between epochs", {"save_every": None}, cuts=(32,), saved=(32,)),
    "validation": Case("validation before the cut", {"validate_every": 11}),
    "twice": Case("two cuts", cuts=(24, 35), saved=(22, 33)),
    "weighted": Case("weighted sampler", {"order": "weighted"}),
    "own": Case("own batch sampler", {"order": "own batches"}),
    "streamed": Case("IterableDataset", {"order": "streamed"}),
    "ranks": Case("DDP, 2 ranks", {"num_processes": 2, "save_every": 5}, cuts=(12,), saved=(10,)),
}


def start_again(job: Job, case: Case) -> Job:
    """The job as a start after the first does it; ours always has another seed."""
    return job.but(**{"seed": OTHER_SEED, **case.again} if is_ours(job) else case.again)


def run_case(tool: str, case: Case, folder: str) -> Observation:
    """The uninterrupted run, then the interrupted one."""
    job = Job(tool, f"{folder}/interrupted", **case.job)
    whole = job.but(folder=f"{folder}/whole")
    start = Start(whole)
    try:
        start.finish()
        return observe(trained(start.jobs), _interrupted(job, case))
    except Failed as error:
        return Observation(failed=str(error)[:400])


def _interrupted(job: Job, case: Case) -> Sequence[Trained]:
    found = []
    for number, (cut, saved) in enumerate(zip(case.cuts, case.saved, strict=True), 1):
        again = start_again(job, case) if number > 1 else job
        found.append(cut_at(again.but(name=f"start-{number}", pause_at=cut), saved, terminated=case.terminated))
    last = Start(start_again(job, case).but(name=f"start-{len(case.cuts) + 1}"))
    last.finish()
    return [*found, trained(last.jobs)]


def cut_at(job: Job, saved: int, *, terminated: bool = False) -> Trained:
    """Train until the process pauses and what was to be saved is there; then end it from outside.

    Raises:
        Failed: it never got there.
    """
    ours = is_ours(job)

    def is_saved() -> bool:
        return not ours or any(saved <= each <= (job.pause_at or 0) for each in committed(job))

    for _ in range(NUM_TRIES if ours else 1):
        start = Start(job.but(settle_at=saved - 2 if ours else None))
        if start.wait(start.is_paused) and start.wait(is_saved, SAVED_S):
            break
        start.kill()  # on a busy machine the save was put off to a batch that did not come
    else:
        raise Failed(f"never came to batch {job.pause_at}: {_tail(job)}")
    if terminated:
        start.terminate()
    else:
        start.kill()
    return trained(start.jobs)


def committed(job: Job) -> set[int]:
    """Of ours: the batches at each committed checkpoint, read as a stranger would."""
    found = set()
    for path in job.checkpoints.glob("attempt-*/step-*/manifest.json"):
        found.add(json.loads(path.read_text())["header"]["progress"]["batch"])
    return found


def _tail(job: Job) -> str:
    return job.path("error").read_text() if job.path("error").exists() else job.path("log").read_text()[-300:]
