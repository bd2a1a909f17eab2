"""Whole runs of an Accelerate script that save at each boundary, and their tails resumed in new processes."""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import random
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import harness
from harness import Job

SCRIPTS = {"trainer": "trainer_scripts", "texts": "trainer_texts"}


def _child(*jobs: Job, ranks: tuple[int, int, int] | None = None) -> None:
    multiprocessing.set_start_method("fork", force=True)
    if ranks is not None:
        rank, size, port = ranks
        os.environ.update(
            MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), WORLD_SIZE=str(size), RANK=str(rank), LOCAL_RANK=str(rank),
            LOCAL_WORLD_SIZE=str(size), GLOO_SOCKET_IFNAME="lo", OMP_NUM_THREADS="1",
        )  # fmt: skip
        jobs = tuple(job.but(name=f"{job.name}.{rank}") for job in jobs)
    for job in jobs:
        harness.hear(job)
        _run(job)


def _run(job: Job) -> None:
    from accelerate.state import AcceleratorState, GradientState

    out = os.open(job.path("log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.close(out)
    if "RANK" not in os.environ:
        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()
    try:
        importlib.import_module(SCRIPTS.get(job.script, "accelerate_scripts")).run(job)
    except BaseException as caught:
        job.path("error").write_text(f"{type(caught).__name__}: {caught}")
        raise


def new_job(root: Path, name: str = "whole", **options: Any) -> Job:
    """A job that saves at each boundary; fields of `Job` among the options are its own."""
    fields = {field: options.pop(field) for field in list(options) if field in Job.__dataclass_fields__}
    defaults: dict[str, Any] = {"save_steps": None, "keep": 999, "settle": True, "num_samples": 22}
    return Job(str(root), name, str(root / "ckpt"), options=options, **{**defaults, **fields})


def start(*jobs: Job, size: int = 1) -> list[Any]:
    Path(jobs[0].root).mkdir(parents=True, exist_ok=True)
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = int(found.getsockname()[1])
    ranks = [None] if size == 1 else [(rank, size, port) for rank in range(size)]
    processes = [
        harness.CONTEXT.Process(target=_child, args=jobs, kwargs={"ranks": each}, daemon=False) for each in ranks
    ]
    for process in processes:
        process.start()
    return processes


def of_ranks(job: Job, size: int) -> list[Job]:
    return [job] if size == 1 else [job.but(name=f"{job.name}.{rank}") for rank in range(size)]


def train(job: Job, size: int = 1) -> list[dict[str, Any]]:
    """Run to the end; what each rank reports."""
    processes = start(job, size=size)
    try:
        return [harness.finish(p, each) for p, each in zip(processes, of_ranks(job, size), strict=True)]
    finally:
        for process in processes:
            if process.is_alive():
                process.kill()
            process.join()


def fails(job: Job) -> str:
    """Run a job that must refuse; its error."""
    (process,) = start(job)
    process.join(harness.DEADLINE_S)
    assert process.exitcode not in (0, None), f"{job.name} ended with {process.exitcode}: nothing was refused"
    return job.path("error").read_text()


def checkpoints(job: Job, attempt: int = 1) -> dict[str, dict[str, Any]]:
    """Name to progress of what an attempt has saved before its end, in order."""
    found = {}
    for path in Path(job.directory).glob(f"attempt-{attempt:04d}-*/*/manifest.json"):
        header = json.loads(path.read_text())["header"]
        if header["finished"] is None:
            found[str(path.parent.relative_to(job.directory))] = header["progress"]
    return dict(sorted(found.items(), key=lambda item: (item[1]["batch"], item[1]["epoch"], len(item[0]), item[0])))


def some(names: list[str], num: int, seed: int | str = 0) -> list[str]:
    """The last and a few before it; another ``seed`` takes others. What goes on from the first is the whole run."""
    if len(names) <= num:
        return names
    between = random.Random(seed).sample(range(1, len(names) - 1), num - 1)
    return [names[at] for at in sorted([len(names) - 1, *between])]


def assert_resumes(job: Job, whole: list[dict[str, Any]], names: Iterable[str], size: int = 1, **changes: Any) -> None:
    """Resumed from each checkpoint under another seed, a run does what the whole one did from there on.

    The tails of one rank share a process, and Accelerate's singletons are made anew for each.
    """
    progress = checkpoints(job)
    tails = [
        job.but(name=f"again-{number}", seed=1000 + number, resume=name, **{"save_steps": 10**6, **changes})
        for number, name in enumerate(names)
    ]
    if size == 1:
        (process,) = start(*tails)
        process.join(harness.DEADLINE_S * 3)
    for tail in tails:
        ends = train(tail, size) if size > 1 else [_end_of(tail)]
        where = progress[tail.resume]
        rest = len(harness.batches(of_ranks(job, size)[0])) - where["batch"]
        assert len(harness.batches(of_ranks(tail, size)[0])) == rest, f"resumed from {tail.resume}: {where}"
        for first, second, end, end_again in zip(of_ranks(job, size), of_ranks(tail, size), whole, ends, strict=True):
            expected, found = harness.steps(first), harness.steps(second)
            assert found == expected[len(expected) - len(found) :], f"resumed from {tail.resume}: {where}"
            assert end_again == end, f"resumed from {tail.resume}: {where}"


def _end_of(job: Job) -> dict[str, Any]:
    assert job.path("end").exists(), f"{job.name} did not end\n{job.path('log').read_text()[-6000:]}"
    return harness.finished(job)


def assert_survives_kills(whole: Job, number: int, workers: tuple[int, ...], num_kills: int) -> None:
    """Killed several times at random moments, a run ends as one that is not.

    Args:
        whole: trains to its end first.
        number: decides the moments, and how many of ``workers`` each start has.
        workers: to choose from.
        num_kills: how often.
    """
    chance = random.Random(1000 + number)
    print(f"run {number} of the sweep: {whole}")
    ends, jobs = train(whole), []
    first = whole.but(directory=f"{whole.root}/killed")
    for place in range(num_kills):
        num_workers = chance.choice(workers)
        job = first.but(
            name=f"start-{place}",
            seed=100 + place if harness.committed(first) else first.seed,  # without a save the run begins anew
            workers=num_workers,
            persistent=num_workers > 0 and chance.random() < 0.5,
            slow_s=0.05,
            settle=chance.random() < 0.5,
        )
        jobs.append(job)
        if not harness.kill_somewhere(job, chance.choice((1, 2, 4, 6)), chance.random() * 0.15, lambda j: start(j)[0]):
            break
    last = first.but(name="last", seed=99 if harness.committed(first) else first.seed)
    assert train(last) == ends
    for job in [*jobs, last]:
        _assert_part_of(harness.steps(whole), harness.steps(job))


def _assert_part_of(whole: list[dict[str, Any]], part: list[dict[str, Any]]) -> None:
    """All that ``part`` did, in order, is what the whole run did from some point on."""
    if part:
        assert any(whole[at : at + len(part)] == part for at in range(len(whole) - len(part) + 1))
