"""Several ranks with a Trainer (DDP over gloo, started as torchrun starts them)."""

from __future__ import annotations

import harness
import pytest
from accelerate_runs import assert_resumes, checkpoints, of_ranks, some, train
from trainer_runs import arguments, new_job

KINDS = {
    "evaluated in the middle": arguments(eval_strategy="steps", eval_steps=2),
    "windows of 2, dispatched": arguments(gradient_accumulation_steps=2, accelerator_config={"dispatch_batches": True}),
    "windows of 2, cut inside": {"cuts": True, **arguments(gradient_accumulation_steps=2, ddp_backend="gloo")},
}
SLOW = {"windows of 2, dispatched"}


@pytest.mark.parametrize("kind", [pytest.param(k, marks=[pytest.mark.slow] if k in SLOW else []) for k in KINDS])
def test_two_ranks_go_on_exactly(tmp_path, kind):
    job = new_job(tmp_path, epochs=2, **KINDS[kind])
    whole = train(job, 2)
    names = list(checkpoints(job))
    assert_resumes(job, whole, some(names[1:-1], 4), 2)
    first = [step for each in of_ranks(job, 2) for step in harness.batches(each) if step["epoch"] == 0]
    assert {index for step in first for index in step["ids"]} == set(range(22))
