"""Several ranks under Accelerate (DDP over gloo)."""

from __future__ import annotations

import harness
import pytest
from accelerate_runs import assert_resumes, checkpoints, new_job, of_ranks, some, train

KINDS = {
    "plain": {},
    "seedable, each rank with a seed of its own": {"loading": {"use_seedable_sampler": True}, "device_specific": True},
    "each rank with a seed of its own": {"device_specific": True, "window": {"num_steps": 2}},
    "split batches": {"loading": {"split_batches": True}},
    "dispatched": {"loading": {"dispatch_batches": True}},
    "ranks that draw alike": {"rng_types": ["torch", "generator"]},
}


SLOW = {"split batches", "ranks that draw alike"}


@pytest.mark.parametrize("kind", [pytest.param(k, marks=[pytest.mark.slow] if k in SLOW else []) for k in KINDS])
def test_two_ranks_go_on_exactly(tmp_path, kind):
    job = new_job(tmp_path, epochs=2, **KINDS[kind])
    whole = train(job, 2)
    assert_resumes(job, whole, some(list(checkpoints(job)), 4), 2)
    first = [step for each in of_ranks(job, 2) for step in harness.batches(each) if step["epoch"] == 0]
    assert {index for step in first for index in step["ids"]} == set(
        range(22)
    )  # shared, whatever ranks were seeded with


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
