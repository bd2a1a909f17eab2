"""A run with a scratch that is killed at every moment of a save, and goes on with the scratch left or gone."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import pytest
from dying import MOMENTS
from harness import DEADLINE_S, Job, assert_same_run, batches, start, train

STEP = 7


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    root = tmp_path_factory.mktemp("reference")
    job = Job(str(root), "reference", str(root / "ckpt"))
    return job, train(job)


def killed(tmp_path, moment):
    scratch = str(tmp_path / "scratch")
    options = {"die": {"moment": moment, "step": STEP, "scratch": scratch}}
    job = Job(str(tmp_path), "first", str(tmp_path / "ckpt"), scratch=scratch, settle=True, options=options)
    process = start(job)
    process.join(DEADLINE_S)
    assert process.exitcode == -signal.SIGKILL, job.path("log").read_text()[-3000:]
    return job


def committed(place):
    return sorted(path.parent.name for path in Path(place).glob("*/*/manifest.json"))


@pytest.mark.parametrize("is_wiped", [False, True], ids=["scratch left", "scratch gone"])
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_kill_at_any_moment_changes_nothing(tmp_path, reference, moment, is_wiped):
    first = killed(tmp_path, moment)
    if is_wiped:
        shutil.rmtree(first.scratch)
    newest = max(committed(first.directory) + committed(first.scratch))
    second = first.but(name="second", seed=99, options={})
    assert_same_run(reference, train(second), first, second)
    log = second.path("log").read_text()
    assert f"/{newest} (" in log
    assert committed(second.directory)[-1].startswith("step-000000015")
    done = int(newest[5:14])
    assert len(batches(second)) == len(batches(reference[0])) - done
    nothing_left = [
        path for path in Path(tmp_path).glob("*/attempt-0001-*/step-*") if not (path / "manifest.json").exists()
    ]
    assert nothing_left == []
