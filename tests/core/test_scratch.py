"""A session with a fast local directory in front of its own."""

from __future__ import annotations

import shutil

import pytest
from scratches import EVERY, files_of, full, killed_before_promotion, names, slowly, told

from resume_core import saves, scratch
from resume_core.session import Session
from resume_core.storage import CheckpointRef, open_store, verify


def test_a_checkpoint_is_promoted_byte_by_byte_and_the_scratch_keeps_the_newest(directory, near, start):
    run = start(directory, scratch=near, save=EVERY)
    for _ in range(5):
        run.train(1).session.wait()
    run.session.end()
    assert names(directory) == [f"attempt-0001/step-{step:09d}" for step in (3, 4, 5)]
    assert names(near) == ["attempt-0001/step-000000005"]
    path = f"{run.session._attempt.name}/step-000000005"
    assert files_of(directory, path) == files_of(near, path)
    assert len(files_of(near, path)) == 6
    assert verify([open_store(near)], CheckpointRef(*path.split("/"))).header["timings"].keys() == {
        "stage_s",
        "write_s",
        "commit_s",
    }


def test_a_kill_before_the_promotion_loses_nothing_when_the_scratch_is_left(
    directory, near, start, monkeypatch, caplog
):
    caplog.set_level("INFO", "exact_resume")
    killed_before_promotion(directory, near, start, monkeypatch)
    second = start(directory, scratch=near, save=EVERY)
    assert second.restored.progress.step == 3
    assert f"({near})" in told(caplog, "resumed at step 3")[0]
    second.session.end()
    # the directory has it now, as a checkpoint of the attempt that runs: none writes in the folder of another
    assert names(directory)[-1] == "attempt-0002/step-000000003"
    assert "attempt-0001/step-000000003" not in names(directory)
    shutil.rmtree(near)
    third = start(directory, scratch=near, save=EVERY)
    assert third.restored.ref.attempt == second.session._attempt.name
    assert third.restored.progress.step == 3
    assert third.toy.value.tolist() == [3, 3, 3]
    third.session.end()


def test_with_the_scratch_gone_a_run_goes_on_from_what_was_promoted(directory, near, start, monkeypatch, caplog):
    caplog.set_level("INFO", "exact_resume")
    killed_before_promotion(directory, near, start, monkeypatch)
    shutil.rmtree(near)
    second = start(directory, scratch=near, save=EVERY)
    assert second.restored.progress.step == 2
    assert str(near) not in told(caplog, "resumed at step 2")[0]
    second.train(2).session.end()
    assert names(directory)[-1] == "attempt-0002/step-000000004"


def test_a_scratch_that_is_full_is_said_once_and_saves_go_to_the_directory(directory, near, start, monkeypatch, caplog):
    run = start(directory, scratch=near, save=EVERY).train(1)
    run.session.wait()
    with monkeypatch.context() as patch:
        patch.setattr(saves, "require_room", full)
        slowly(run, 6)
        run.session.wait()
    assert len(told(caplog, "No space left")) == 1
    assert not told(caplog, "failed")
    assert names(directory)[-1] >= "attempt-0001/step-000000005"
    run.train(2)
    run.session.end()
    assert names(near) == ["attempt-0001/step-000000009"] == names(directory)[-1:]


def test_the_last_save_goes_to_the_directory_when_the_scratch_refuses_it(directory, near, start, monkeypatch):
    run = start(directory, scratch=near, save=EVERY).train(1)
    run.session.wait()
    monkeypatch.setattr(saves, "require_room", full)
    run.train(1)
    run.session.end()
    assert names(directory)[-1] == "attempt-0001/step-000000002"


def test_a_scratch_that_is_too_small_is_not_used_and_one_message_names_the_bytes(
    directory, near, start, monkeypatch, caplog
):
    monkeypatch.setattr(scratch.LocalStore, "usage", lambda self: (1000, 16_000))
    run = start(directory, scratch=near, save=EVERY).train(2)
    run.session.end()
    (said,) = told(caplog, "scratch=")
    assert "1024 bytes are needed" in said
    assert "1000 are free" in said
    assert not near.exists()
    assert names(directory)[-1] == "attempt-0001/step-000000002"


def test_a_scratch_that_cannot_be_made_is_not_used(directory, near, start, caplog):
    near.write_text("a file is in the way")
    start(directory, scratch=near, save=EVERY).train(2).session.end()
    assert len(told(caplog, "is not used, saves go to")) == 1
    assert names(directory)[-1] == "attempt-0001/step-000000002"


@pytest.mark.parametrize("place", ["s3://bucket/fast", "memory://fast", "", "run", "run/fast", "."])
def test_what_cannot_be_a_scratch_is_refused(toy, tmp_path, place, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"scratch|empty"):
        Session(toy(), tmp_path / "run", scratch=place)
