"""Two ranks that ``torchrun`` starts, killed inside an accumulation window in the middle of an epoch."""

from __future__ import annotations

from typing import Any

import accelerate_runs
import harness
import pytest
import trainer_runs
import under_torchrun
from accelerate_runs import of_ranks
from harness import Job

AT = 4  # of six batches: the second one of a window of two, in the second epoch


def accelerate_job(root: Any) -> Job:
    window = {"window": {"num_steps": 2}, "saves in windows": True}
    return accelerate_runs.new_job(root, epochs=2, **window)


def trainer_job(root: Any) -> Job:
    arguments = trainer_runs.arguments(gradient_accumulation_steps=2, ddp_backend="gloo")
    return trainer_runs.new_job(root, epochs=2, cuts=True, **arguments)


JOBS = {"Accelerate": accelerate_job, "Trainer": trainer_job}


def assert_goes_on(whole: Job, ends: list[dict[str, Any]], again: Job) -> None:
    """Each rank of ``again`` does what the whole run did from batch `AT` on, and ends alike."""
    for first, second, end in zip(of_ranks(whole, 2), of_ranks(again, 2), ends, strict=True):
        expected, found = harness.steps(first), harness.steps(second)
        assert found == expected[len(expected) - len(found) :]
        assert harness.batches(second)[0]["batch"] == AT
        assert harness.finished(second) == end


@pytest.mark.parametrize("framework", ["Accelerate", pytest.param("Trainer", marks=pytest.mark.slow)])
def test_ranks_that_are_all_killed_and_started_again_go_on_exactly(tmp_path, framework):
    whole = JOBS[framework](tmp_path)
    ends = accelerate_runs.train(whole, 2)
    killed = whole.but(name="killed", directory=str(tmp_path / "killed"), pause_at=AT)
    process = under_torchrun.start(killed)
    under_torchrun.wait_until_paused(process, killed, 0, 1)
    under_torchrun.kill(process, killed)
    again = killed.but(name="again", seed=99, pause_at=None)
    under_torchrun.finish(under_torchrun.start(again), again)
    assert_goes_on(whole, ends, again)


@pytest.mark.slow
@pytest.mark.parametrize("framework", JOBS)
def test_ranks_that_torchrun_restarts_as_one_was_killed_go_on_exactly(tmp_path, framework):
    whole = JOBS[framework](tmp_path)
    ends = accelerate_runs.train(whole, 2)
    options = {**whole.options, "pausing ranks": [1]}
    killed = whole.but(name="killed", directory=str(tmp_path / "killed"), pause_at=AT, options=options)
    process = under_torchrun.start(killed, "--max-restarts=1")
    under_torchrun.wait_until_paused(process, killed, 1)
    under_torchrun.kill_worker(killed, 1)
    under_torchrun.finish(process, killed)
    assert_goes_on(whole, ends, under_torchrun.restarted(killed))
