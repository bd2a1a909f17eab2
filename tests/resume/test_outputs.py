"""Logs and Lightning's own checkpoint files after kills are those of the uninterrupted run."""

from __future__ import annotations

from pathlib import Path

import pytest
import ranks
from harness import Job, assert_tail, batches, kill_at, train
from outputs import left_behind

ALL = ["by step", "by validation", "newest", "monitor"]
KINDS = {
    "two loggers": {
        "loggers": [["tensorboard", {}], ["csv", {"version": "own"}]],
        "callbacks": ALL,
        "log_before_fit": True,
    },
    "the default": {"loggers": True, "callbacks": ["by validation"]},
}


def job_of(root, options, **changes):
    return Job(str(root), "run", str(root / "ckpt"), options=options, save_steps=3).but(**changes)


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_run_leaves_behind_is_that_of_the_uninterrupted_one(tmp_path, kind):
    whole = job_of(tmp_path / "whole", KINDS[kind])
    reference = whole, train(whole)
    first = job_of(tmp_path / "cut", KINDS[kind], name="first")
    kill_at(first, 5, saved=3)  # what was written after the checkpoint is written again
    second = first.but(name="second", seed=8)
    kill_at(second, 11, saved=9)  # an epoch has ended in between
    third = first.but(name="third", seed=9)
    assert_tail(reference, train(third), third)
    expected, found = left_behind(whole), left_behind(third)
    for name in expected:
        assert found[name] == expected[name], name
    for folder in found["events"].values():  # Lightning logs the epoch with every metric
        assert all(len(values) == 1 for (tag, _), values in folder.items() if tag != "epoch")


def test_a_run_that_was_tuned_goes_on_without_tuning(tmp_path):
    whole = Job(str(tmp_path), "whole", str(tmp_path / "whole"), script="tuned")
    reference = whole, train(whole)
    first = whole.but(name="first", directory=str(tmp_path / "ckpt"))
    kill_at(first, 4)
    second = first.but(name="second", seed=8)
    assert_tail(reference, train(second), second)
    assert second.path("log").read_text().count("is not run again") == 2
    assert {len(batch["ids"]) for batch in batches(second)} == {8}


def test_what_ranks_leave_behind_is_that_of_the_uninterrupted_run(tmp_path):
    options = {"loggers": [["csv", {}], ["tensorboard", {"version": "own"}]], "callbacks": ["by validation", "newest"]}
    whole = job_of(tmp_path / "whole", options, epochs=2)
    for root in (whole.root, str(tmp_path / "cut")):
        Path(root).mkdir()
    ranks.train(whole, 2)
    first = job_of(tmp_path / "cut", options, name="first", epochs=2)
    ranks.kill_at(first, 2, 5, saved=3)
    second = first.but(name="second")
    ranks.train(second, 2)
    expected, found = (left_behind(ranks.of_rank(job, 0)) for job in (whole, second))
    for name in expected:
        assert found[name] == expected[name], name
