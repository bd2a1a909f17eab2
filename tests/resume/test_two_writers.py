"""Two processes of one run at once: the newer attempt wins, the older one changes nothing for it."""

from __future__ import annotations

import os
import signal

import pytest
from harness import Job, committed, start, steps, train, wait_for


@pytest.mark.parametrize("off_s", [0.0, -1e6], ids=["right clock", "slow clock"])
def test_an_older_attempt_that_still_writes_changes_nothing_for_the_newer_one(tmp_path, off_s):
    alone = Job(str(tmp_path), "reference", str(tmp_path / "reference"))
    expected = train(alone)
    clock = {"all_clocks_off_s": off_s}
    old = alone.but(name="old", directory=str(tmp_path / "ckpt"), slow_s=0.05, options=clock)
    process = start(old)
    wait_for(lambda: len(steps(old)) >= 5 and len(committed(old)) >= 2, process, old)
    os.kill(process.pid, signal.SIGSTOP)  # as a machine that hangs; it wakes up when its successor is at work
    new = alone.but(name="new", directory=old.directory, seed=3, slow_s=0.05)
    successor = start(new)
    wait_for(lambda: len(steps(new)) >= 2, successor, new)
    os.kill(process.pid, signal.SIGCONT)
    process.join(60)
    successor.join(60)
    assert successor.exitcode == 0, new.path("log").read_text()
    assert process.exitcode not in (0, None)
    error = old.path("error").read_text()
    assert "attempt-0001" in error
    assert "attempt-0002" in error
    third = alone.but(name="third", directory=old.directory, seed=4)
    assert train(third) == expected
    assert "from attempt-0002" in third.path("log").read_text()
    by_place = {(s["epoch"], s["batch"]): s for s in steps(alone) if "batch" in s}
    assert all(by_place[s["epoch"], s["batch"]] == s for s in steps(new) + steps(third) if "batch" in s)


def test_a_run_that_was_begun_anew_is_the_one_that_goes_on(tmp_path):
    first = Job(str(tmp_path), "first", str(tmp_path / "ckpt"), epochs=1)
    train(first)
    anew = first.but(name="anew", resume="never", save_steps=2)
    train(anew)
    again = first.but(name="again", epochs=3)
    train(again)
    assert "from attempt-0002" in again.path("log").read_text()
