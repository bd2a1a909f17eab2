"""Logs and Lightning's own checkpoint files after kills are those of the uninterrupted run."""

from __future__ import annotations

import pytest
from harness import Job, assert_tail, kill_at, train
from outputs import left_behind

ALL = ["by step", "by validation", "newest", "monitor"]
KINDS = {
    "csv": {"loggers": [["csv", {}]], "callbacks": ALL},
    "tensorboard": {"loggers": [["tensorboard", {}]], "callbacks": ALL},
    "the default": {"loggers": True, "callbacks": ["by validation"]},
    "both": {"loggers": [["tensorboard", {}], ["csv", {"version": "own"}]], "log_before_fit": True},
}


def job_of(root, options, **changes):
    return Job(str(root), "run", str(root / "ckpt"), options=options, save_steps=3).but(**changes)


# 3 of 5 batches an epoch are done at the checkpoint, more at the kill; or an epoch has ended in between
@pytest.mark.parametrize("kind", KINDS)
def test_what_a_run_leaves_behind_is_that_of_the_uninterrupted_one(tmp_path, kind):
    whole = job_of(tmp_path / "whole", KINDS[kind])
    reference = whole, train(whole)
    first = job_of(tmp_path / "cut", KINDS[kind], name="first")
    kill_at(first, 5, saved=3)
    second = first.but(name="second", seed=8)
    kill_at(second, 11, saved=9)
    third = first.but(name="third", seed=9)
    assert_tail(reference, train(third), third)
    expected, found = left_behind(whole), left_behind(third)
    for name in expected:
        assert found[name] == expected[name], name
    assert all(len(values) == 1 for folder in found["events"].values() for values in folder.values())
