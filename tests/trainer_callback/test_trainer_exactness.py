"""A Trainer that is killed and started again does what the uninterrupted one did, to the last bit."""

from __future__ import annotations

import pytest
from accelerate_runs import assert_resumes, checkpoints, some, train
from accelerate_runs import new_job as new_accelerate_job


def new_job(tmp_path, *arguments, **options):
    return new_accelerate_job(tmp_path, *arguments, script="trainer", **options)


def whole_run(tmp_path, **options):
    job = new_job(tmp_path, **options)
    return job, train(job)


@pytest.mark.parametrize(
    ("workers", "persistent"),
    [(0, False), (2, False), pytest.param(2, True, marks=pytest.mark.slow)],
    ids=["0 workers", "2 workers", "2 persistent"],
)
def test_a_run_goes_on_from_each_boundary(tmp_path, workers, persistent):
    job, whole = whole_run(tmp_path, workers=workers, persistent=persistent)
    names = list(checkpoints(job))
    assert_resumes(job, whole, names if not workers else some(names, 6))
