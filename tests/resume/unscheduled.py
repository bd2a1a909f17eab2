"""Jobs of each framework that save only when something happens to them."""

from __future__ import annotations

import accelerate_runs
import harness
import trainer_runs
from harness import Job

NEVER = 10**6


def lightning(root, **fields):
    job = Job(str(root), "whole", str(root / "ckpt"), save_steps=NEVER, **fields)
    return job, harness.start, harness.train


def accelerate(root, **fields):
    job = accelerate_runs.new_job(root, save_steps=NEVER, settle=False, num_samples=20, **fields)
    return job, lambda job: accelerate_runs.start(job)[0], lambda job: accelerate_runs.train(job)[0]


def trainer(root, **fields):
    job = trainer_runs.new_job(root, save_steps=NEVER, settle=False, num_samples=20, **fields)
    return job, lambda job: accelerate_runs.start(job)[0], lambda job: accelerate_runs.train(job)[0]
