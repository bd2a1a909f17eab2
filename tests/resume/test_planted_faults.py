"""What is wrong with a resume is found within the first steps; and a clean one is called clean."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import accelerate_runs
import harness
import pytest
import ranks
from checked import SAVED, train, whole_job
from harness import Job

FOUND = {
    "optimizer state dropped": ("optimizers.0.state", "weights"),
    "scheduler reset": ("optimizers.0.param_groups.0.lr", "learning rate"),
    "one weight changed": ("weights.", "weights"),
    "scaler reset": ("scaler.", "loss scale"),
    "samples shifted": ("", "samples of loader 0"),
    "augmentation seeded otherwise": ("", "inputs"),
    "generators not restored": ("", "random generators"),
    "generators of another rank": ("", "random generators"),
}
TWO_RANKS = "generators of another rank"
ONE_RANK = [name for name in FOUND if name != TWO_RANKS]


def fails(job: Job, framework: str) -> str:
    return harness.fails(job) if framework == "lightning" else accelerate_runs.fails(job)


@pytest.fixture(scope="session", params=["lightning", "accelerate", "trainer"])
def whole(request, tmp_path_factory):
    job = whole_job(tmp_path_factory.mktemp(request.param), request.param)
    train(job, request.param)
    return job, request.param


def again(job: Job, fault: str | None, on_mismatch: str) -> Job:
    name = next(name for name in harness.committed(job) if f"step-{SAVED:09d}" in name)
    planted = {} if fault is None else {"fault": fault}
    options = {**job.options, **planted, "check": {"on_mismatch": on_mismatch}}
    return job.but(name=f"again {fault}", seed=99, resume=name, save_steps=1, options=options)


def result_of(job: Job) -> dict:
    """Of the newest attempt."""
    newest = sorted(Path(job.directory).glob("attempt-*"))[-1]
    return json.loads((newest / "check.json").read_text())["result"]


@pytest.mark.parametrize("fault", ONE_RANK)
def test_a_planted_fault_is_found(whole, fault):
    job, framework = whole
    before = harness.committed(job)
    error = fails(again(job, fault, "stop"), framework)
    place, row = FOUND[fault]
    result = result_of(job)
    assert error.startswith("DivergedError: ")
    assert row in error
    assert result["verdict"] == "differs"
    assert any(found.startswith(place) for found in result["live"]["differs"]) or not place, result["live"]
    assert harness.committed(job) == before  # the checkpoint stays the newest of its line


def test_a_clean_resume_is_called_clean(whole, tmp_path):
    job, framework = whole
    shutil.copytree(job.directory, tmp_path / "ckpt")  # the other one has resumes that are not
    job = job.but(directory=str(tmp_path / "ckpt"))
    for attempt in sorted(tmp_path.glob("ckpt/attempt-*"))[1:]:
        shutil.rmtree(attempt)
    train(again(job, None, "stop"), framework)
    result = result_of(job)
    assert (result["verdict"], result["steps"], result["rtol"], result["num_rows"]) == ("same", 3, None, 0)
    assert result["live"]["num"] > 10
    assert result["live"]["num_differ"] == 0


@pytest.mark.parametrize("framework", ["lightning", "accelerate"])
def test_generators_of_another_rank_are_found_on_each(tmp_path, framework):
    job = whole_job(tmp_path, framework)
    job = job.but(num_samples=80, options={**job.options, "fault": "ranks draw apart"})
    if framework == "lightning":
        ranks.train(job, 2)
        errors = ranks.fails(again(job, TWO_RANKS, "stop"), 2)
    else:
        accelerate_runs.train(job, 2)
        faulty = again(job, TWO_RANKS, "stop")
        processes = accelerate_runs.start(faulty, size=2)
        for process in processes:
            process.join(harness.DEADLINE_S)
        errors = [each.path("error").read_text() for each in accelerate_runs.of_ranks(faulty, 2)]
    result = result_of(job)
    assert all(error.startswith("DivergedError: ") for error in errors)  # of both, wherever it was found
    assert {row["rank"] for row in result["rows"] if row["name"] == "random generators"} == {0, 1}


@pytest.mark.parametrize("framework", ["lightning", "accelerate", "trainer"])
def test_a_loss_that_is_no_number_ends_a_run_that_wants_it(tmp_path, framework):
    job = whole_job(tmp_path, framework)
    options = {"val": False, "fault": "weights spoilt", "watch": {"on": "stop"}}
    error = fails(job.but(options=options), framework)
    assert error.startswith("DivergedError: the loss is nan at step 4. Nothing was saved there")
    assert len(harness.committed(job)) == 1  # at the start
