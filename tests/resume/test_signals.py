"""Runs that are asked to leave by a signal, again and again: each start goes on where the last one left, and nothing is
trained on twice."""

from __future__ import annotations

import logging
import os
import random
import signal
import time
from contextlib import suppress

import harness
import psutil
import pytest
import ranks
from harness import Job, batches
from unscheduled import NEVER, accelerate, lightning, trainer

from resume_core.goodput import account
from resume_core.storage import Lineage, open_store


def ask(process, *, everyone=False, number=signal.SIGTERM):
    """As a supervisor does: the training process, or all processes that belong to it. Gives those that do."""
    with suppress(psutil.NoSuchProcess):
        found = psutil.Process(process.pid)
        children = found.children(recursive=True)
        for each in [*(children if everyone else ()), found]:
            with suppress(ProcessLookupError):  # a worker that has done its part
                os.kill(each.pid, number)
        return [found, *children]
    return []


def account_of(job):
    lineage = Lineage(open_store(job.directory))
    return account(lineage, lineage.newest().name, logging.getLogger())


def histories(job):
    return [share.past for share in account_of(job).shares]


def leave(job, start, num_batches, delay_s, **how):
    """Start, ask it to leave when it has trained on ``num_batches``; False when it came to its end before."""
    process = start(job)
    harness.wait_for(lambda: len(batches(job)) >= num_batches or job.path("end").exists(), process, job)
    process.join(delay_s)
    belonging = ask(process, **how)
    process.join(harness.DEADLINE_S)
    assert not psutil.wait_procs(belonging, timeout=10)[1]  # no process is left, and no memory that they had shared
    assert not [name for name in os.listdir("/dev/shm") for one in belonging if f"_{one.pid}_" in name]
    log = job.path("log").read_text()[-6000:]
    assert process.exitcode in (0, 143), log
    assert (process.exitcode == 0) == job.path("end").exists(), log
    return process.exitcode == 143


SLOW = [pytest.param(*kind, marks=pytest.mark.slow) for kind in ((0, 30, 14), (2, 30, 14))]


@pytest.mark.parametrize("framework", [lightning, accelerate, trainer])
@pytest.mark.parametrize(("workers", "times", "epochs"), [(0, 5, 3), (2, 5, 3), *SLOW])
def test_a_run_that_leaves_many_times_ends_as_one_that_never_did(tmp_path, framework, workers, times, epochs):
    chance = random.Random(7)
    whole, start, train = framework(tmp_path, workers=workers, epochs=epochs)
    end, jobs, num_left = train(whole), [], 0
    first = whole.but(directory=str(tmp_path / "left"), slow_s=0.03)
    for place in range(times):
        jobs.append(first.but(name=f"start-{place}", seed=100 + place if place else whole.seed))
        how = {"everyone": True, "number": chance.choice((signal.SIGTERM, signal.SIGUSR1))}
        if not leave(jobs[-1], start, chance.choice((1, 2, 3) if times < 10 else (1,)), chance.random() * 0.05, **how):
            break
        num_left += 1
    assert num_left >= times - 1
    if num_left == times:
        jobs.append(first.but(name="last", seed=99))
        train(jobs[-1])
    assert harness.finished(jobs[-1]) == end
    done = [step for job in jobs for step in batches(job)]
    assert done == batches(whole)  # nothing twice, nothing left out
    told = histories(jobs[-1])
    assert [past.cause for past in told] == ["preempted"] * num_left + ["finished"]
    assert all(past.why in ("SIGTERM", "SIGUSR1") for past in told[:-1])
    assert [share.lost_batches for share in account_of(jobs[-1]).shares] == [0] * len(told)


@pytest.mark.parametrize("asked", [(0,), (1,), (1, 0)])
def test_all_ranks_leave_at_one_boundary_whichever_is_asked(tmp_path, asked):
    whole = Job(str(tmp_path), "whole", str(tmp_path / "ckpt"), save_steps=NEVER)
    ends = ranks.train(whole, 2)
    first = whole.but(name="first", directory=str(tmp_path / "left"), slow_s=0.05, epochs=3)
    processes, each = ranks.start(first, 2), [ranks.of_rank(first, rank) for rank in range(2)]
    harness.wait_for(lambda: len(batches(each[0])) >= 2, processes[0], each[0])
    for rank in asked:
        os.kill(processes[rank].pid, signal.SIGTERM)
        time.sleep(0.3)
    for process, job in zip(processes, each, strict=True):
        process.join(harness.DEADLINE_S)
        assert process.exitcode == 143, job.path("log").read_text()[-6000:]
    (saved,) = harness.committed_batches(first) - {0}
    assert [len(batches(job)) for job in each] == [saved, saved]
    second = first.but(name="second", seed=99)
    ranks.assert_tails((whole, ends), ranks.train(second, 2), second, saved=saved)
