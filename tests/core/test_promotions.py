"""Promotions that fail, wait, are overtaken, or come late."""

from __future__ import annotations

import errno
import os
import time

import pytest
from scratches import EVERY, names, promotions_fail, promotions_held, slowly, told

from resume_core import Keep, SaveEvery, SupersededError, saves
from resume_core.errors import SaveFailedError
from resume_core.session import Session
from resume_core.state import Ending, Progress


def test_memory_is_free_for_the_next_save_while_the_one_before_is_promoted(directory, near, start, monkeypatch):
    run = start(directory, scratch=near, save=EVERY).train(1)
    run.session.wait()
    with promotions_held(monkeypatch):
        run.train(3)
        run.session._saves.writer.wait()
        assert names(near)[-1] == "attempt-0001/step-000000004"
        assert names(directory)[-1] == "attempt-0001/step-000000001"
    run.session.end()
    assert names(directory)[-1] == "attempt-0001/step-000000004"


def test_a_newer_checkpoint_overtakes_one_that_waits_and_the_scratch_holds_three_at_most(
    directory, near, start, monkeypatch
):
    run = start(directory, scratch=near, save=EVERY, keep=Keep(last=99)).train(1)
    run.session.wait()
    most = 0
    with promotions_held(monkeypatch):
        for _ in range(6):
            run.train(1)
            most = max(most, len(os.listdir(near / run.session._attempt.name)) - 1)
    run.session.end()
    assert most == 3
    assert names(directory) == [f"attempt-0001/step-{step:09d}" for step in (0, 1, 2, 7)]
    assert names(near) == ["attempt-0001/step-000000007"]


def test_a_promotion_that_fails_is_said_once_and_the_next_one_brings_the_newest(
    directory, near, start, monkeypatch, caplog
):
    run = start(directory, scratch=near, save=EVERY).train(1)
    run.session.wait()
    with monkeypatch.context() as patch:
        promotions_fail(patch)
        run.train(1)
        run.session._saves.writer.wait()
        run.session.boundary(Progress(step=2, batch=2))
        run.session._saves.wait()
    run.train(1)
    run.session.end()
    assert len(told(caplog, "failed")) == 1
    assert "the network is down" in told(caplog, "the save at step 2 failed")[0]
    assert names(directory)[-1] == "attempt-0001/step-000000003"


def test_three_promotions_in_a_row_that_fail_end_training(directory, near, start, monkeypatch):
    run = start(directory, scratch=near, save=EVERY).train(1)
    run.session.wait()
    promotions_fail(monkeypatch)
    with pytest.raises(SaveFailedError, match="the network is down") as failed:
        slowly(run, 20)
    assert isinstance(failed.value.__cause__, ConnectionError)


def test_the_first_promotion_of_a_run_shows_that_the_directory_can_be_written(directory, near, start, monkeypatch):
    promotions_fail(monkeypatch, PermissionError(errno.EACCES, "Permission denied"))
    run = start(directory, scratch=near, save=SaveEvery(steps=100))
    with pytest.raises(SaveFailedError, match="Permission denied"):
        slowly(run, 4)


def test_the_last_promotion_must_succeed(directory, near, start, monkeypatch):
    run = start(directory, scratch=near, save=EVERY).train(1)
    run.session.wait()
    promotions_fail(monkeypatch)
    run.train(1)
    with pytest.raises(SaveFailedError, match="the network is down"):
        run.session.end()


def test_a_promotion_that_a_newer_attempt_overtakes_is_not_committed(directory, near, start, monkeypatch):
    old = start(directory, scratch=near, save=EVERY).train(2)
    old.session.wait()
    with promotions_held(monkeypatch):
        old.train(1)
        old.session._saves.writer.wait()
        old.session.boundary(Progress(step=3, batch=3))
        new = start(directory, scratch=near, save=EVERY)
        assert new.restored.progress.step == 3
    with pytest.raises(SupersededError, match="attempt-0002"):
        old.session.wait()
    new.session.end()
    assert "attempt-0001/step-000000003" not in names(directory)
    assert names(directory)[-1] == "attempt-0002/step-000000003"


def test_the_end_state_does_not_take_the_place_of_the_save_at_the_last_batch(directory, near, start, monkeypatch):
    copy = saves.copy_share
    monkeypatch.setattr(saves, "copy_share", lambda *args: time.sleep(0.1) or copy(*args))
    run = start(directory, scratch=near, save=EVERY).train(4)
    run.toy.step()
    last = Progress(step=5, batch=5, is_last=True)
    run.session.boundary(last)
    run.session.finish(last, Ending("stop", {}))
    run.session.end()
    assert names(directory)[-2:] == ["attempt-0001/step-000000005", "attempt-0001/step-000000005.2"]
    assert names(near) == names(directory)[-2:]


def test_an_end_state_that_was_not_promoted_is_by_the_next_start(directory, near, start, monkeypatch):
    run = start(directory, scratch=near, save=EVERY).train(1)
    run.session.wait()
    run.session.finish(Progress(step=1, batch=1, is_last=True), Ending("stop", {}))
    run.session._saves.wait()  # ends like a kill: on the scratch, and not concluded
    assert names(directory)[-1] == "attempt-0001/step-000000001"
    toy = run.toy
    again = Session(type(toy)(), directory, scratch=near)
    again.start(7)
    assert again.is_over
    again.end()
    assert names(directory)[-1] == "attempt-0002/step-000000001"
    once_more = Session(type(toy)(), directory, scratch=near)
    once_more.start(7)
    once_more.end()
    assert once_more.is_over
    assert names(directory)[-1] == "attempt-0002/step-000000001"
