"""Accelerate scripts of many configurations, each killed several times at random moments.

A configuration, its kills and the seeds of its starts follow from one number, so what has failed is run again with
``pytest tests/accelerate_plugin/test_accelerate_sweep.py -k "[7]"``.
"""

from __future__ import annotations

import random
from typing import Any

import harness
import pytest
from accelerate_runs import assert_part_of, new_job, start, train

NUM_RUNS, NUM_KILLS, NUM_QUICK = 16, 4, 2
STYLES = ("plain", "break", "continue", "nested", "nested with break", "in turn", "zip", "alternating", "cycled", "gan")


def configuration(number: int) -> dict[str, Any]:
    """What run ``number`` trains."""
    chance = random.Random(number)
    window = {"num_steps": chance.choice((1, 1, 2, 3)), "sync_with_dataloader": chance.random() < 0.7}
    return {
        "style": chance.choice(STYLES),
        "range": chance.random() < 0.2,
        "window": window,
        "loading": {
            "use_seedable_sampler": chance.random() < 0.4,
            "use_stateful_dataloader": chance.random() < 0.3,
            "dispatch_batches": chance.random() < 0.2,
        },
        "loader": chance.choice(("shuffled", "shuffled", "weighted", "numbered", "own generator")),
        "scaler": chance.random() < 0.3,
        "overflows": [0, 3, 4, 9],
        "held": chance.random() < 0.3,
        "save_steps": chance.choice((None, 1, 2)),
        "keep": chance.choice((1, 2, 3)),
        "settle": False,
    }


@pytest.mark.parametrize(
    "number",
    [pytest.param(number, marks=[pytest.mark.slow] if number >= NUM_QUICK else []) for number in range(NUM_RUNS)],
)
def test_a_script_that_is_killed_at_random_moments_ends_as_one_that_is_not(tmp_path, number):
    chance = random.Random(1000 + number)
    whole = new_job(tmp_path, **configuration(number))
    print(f"run {number} of the sweep: {whole}")
    ends, jobs = train(whole), []
    first = whole.but(directory=str(tmp_path / "killed"))
    for place in range(NUM_KILLS):
        workers = chance.choice((0, 0, 1, 2, 4))
        job = first.but(
            name=f"start-{place}",
            seed=100 + place if harness.committed(first) else first.seed,  # without a save the run begins anew
            workers=workers,
            persistent=workers > 0 and chance.random() < 0.5,
            slow_s=0.05,
            settle=chance.random() < 0.5,
        )
        jobs.append(job)
        num_batches, (process,) = chance.choice((1, 2, 4, 6)), start(job)
        harness.wait_for(lambda: len(harness.batches(job)) >= num_batches or job.path("end").exists(), process, job)  # noqa: B023
        process.join(chance.random() * 0.15)
        if job.path("end").exists() or process.exitcode is not None:
            process.join()
            break
        harness.kill(process)
    last = first.but(name="last", seed=99 if harness.committed(first) else first.seed)
    assert train(last) == ends
    for job in [*jobs, last]:
        assert_part_of(harness.steps(whole), harness.steps(job))
