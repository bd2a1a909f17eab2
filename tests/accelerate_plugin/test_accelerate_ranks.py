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


@pytest.mark.parametrize("kind", KINDS)
def test_two_ranks_go_on_exactly(tmp_path, kind):
    job = new_job(tmp_path, epochs=2, **KINDS[kind])
    whole = train(job, 2)
    assert_resumes(job, whole, some(list(checkpoints(job)), 4), 2)
    ids = [[index for step in harness.batches(each)[:3] for index in step["ids"]] for each in of_ranks(job, 2)]
    assert sorted({*ids[0], *ids[1]}) == list(range(22))  # ranks share an epoch, whatever they were seeded with
