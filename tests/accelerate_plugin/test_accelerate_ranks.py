"""Several ranks under Accelerate (DDP over gloo)."""

from __future__ import annotations

import shutil

import harness
import pytest
from accelerate_runs import assert_resumes, checkpoints, new_job, of_ranks, some, start, train

KINDS = {
    "plain": {},
    "seedable, each rank with a seed of its own": {"loading": {"use_seedable_sampler": True}, "device_specific": True},
    "each rank with a seed of its own": {"device_specific": True, "window": {"num_steps": 2}},
    "split batches": {"loading": {"split_batches": True}},
    "dispatched": {"loading": {"dispatch_batches": True}},
    "ranks that draw alike": {"rng_types": ["torch", "generator"]},
    "stateful": {
        "loading": {"use_stateful_dataloader": True, "use_seedable_sampler": True, "data_seed": 5},
        "workers": 1,
    },
    "stateful, dispatched and split": {
        "loading": {"use_stateful_dataloader": True, "dispatch_batches": True, "split_batches": True},
        "num_samples": 20,
    },
    "weighted": {"loader": "weighted"},
    "batch sampler": {"loader": "batches", "uneven": True},  # of batches that differ, Accelerate gathers nothing
    "fp16": {"scaler": True, "overflows": [0, 3], "window": {"num_steps": 3}},
    "saves inside of windows": {"saves in windows": True, "window": {"num_steps": 3}},
}


SLOW = {"split batches", "ranks that draw alike", "stateful, dispatched and split", "weighted", "batch sampler", "fp16",
        "saves inside of windows"}  # fmt: skip


@pytest.mark.parametrize("kind", [pytest.param(k, marks=[pytest.mark.slow] if k in SLOW else []) for k in KINDS])
def test_two_ranks_go_on_exactly(tmp_path, kind):
    job = new_job(tmp_path, epochs=2, **KINDS[kind])
    whole = train(job, 2)
    assert_resumes(job, whole, some(list(checkpoints(job)), 4), 2)
    first = [step for each in of_ranks(job, 2) for step in harness.batches(each) if step["epoch"] == 0]
    if kind != "weighted":  # shared, whatever ranks were seeded with
        assert {index for step in first for index in step["ids"]} == set(range(job.num_samples))
    again = of_ranks(job.but(name="again-1"), 2)
    for each in again:  # what padding repeats is in no metric
        assert {len(step["validated"]) for step in harness.steps(each) if "validated" in step} == {7}
    gathered = [index for step in harness.batches(again[0]) if step["epoch"] == 1 for index in step["gathered"]]
    assert kind == "weighted" or len(gathered) == len(set(gathered))


def test_three_ranks_go_on_with_the_buckets_that_they_had(tmp_path):
    job = new_job(tmp_path, epochs=2, num_samples=28, width=32)
    whole = train(job, 3)
    names = list(checkpoints(job))
    assert_resumes(job, whole, names[1:3], 3)


def test_ranks_with_different_numbers_of_batches_are_saved_between_epochs(tmp_path):
    job = new_job(tmp_path, num_samples=20, loading={"even_batches": False}, style="uneven", uneven=True)
    whole = train(job, 2)
    names = checkpoints(job)
    assert {progress["epoch_batch"] for progress in names.values()} == {0, 3}
    assert_resumes(job, whole, list(names)[:2], 2)


def test_a_file_of_one_rank_that_is_torn_or_missing_is_an_error_on_all(tmp_path):
    job = new_job(tmp_path, epochs=1)
    train(job, 2)
    *_, before, last = names = list(checkpoints(job))
    for found in harness.committed(job):
        if found not in names:
            shutil.rmtree(tmp_path / "ckpt" / found)  # a run that is over has nothing to go on with
    file = tmp_path / "ckpt" / last / "rank-00001.json"
    file.write_bytes(file.read_bytes()[:-1])
    named = job.but(name="named", seed=9, resume=last)
    for process, each in zip(start(named, size=2), of_ranks(named, 2), strict=True):
        process.join(harness.DEADLINE_S)
        assert process.exitcode not in (0, None)
        assert "CorruptCheckpointError" in each.path("error").read_text()
        assert "rank-00001.json" in each.path("error").read_text()
        assert harness.steps(each) == []
    file.unlink()
    again = job.but(name="again", seed=9, save_steps=10**6)
    train(again, 2)
    log = of_ranks(again, 2)[0].path("log").read_text()
    assert f"{last} cannot be used" in log
    assert f"from {before}" in log
