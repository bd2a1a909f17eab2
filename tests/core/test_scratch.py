"""A session with a fast local directory in front of its own."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import threading
import time
from pathlib import Path

import pytest
from test_ranks import together
from test_session_ranks import Start

from resume_core import Keep, SaveEvery, SupersededError, saves, scratch
from resume_core.errors import SaveFailedError
from resume_core.session import Session
from resume_core.state import Ending, Progress
from resume_core.storage import CheckpointRef, CheckpointWriter, Lineage, open_store, verify

EVERY = SaveEvery(steps=1, minutes=None)


@pytest.fixture
def near(tmp_path):
    return tmp_path / "scratch"


def names(place):
    """Committed checkpoints in one store, as a stranger would find them."""
    store = open_store(str(place))
    found = []
    for attempt in store.list(""):
        steps = [name for name in store.list(attempt) if store.exists(f"{attempt}/{name}/manifest.json")]
        found += [f"{attempt[:12]}/{name}" for name in steps]
    return sorted(found)


def files_of(place, path):
    store = open_store(str(place))
    return {name: store.read(f"{path}/{name}") for name in store.list(path)}


def told(caplog, text):
    return [r.getMessage() for r in caplog.records if text in r.getMessage()]


@contextlib.contextmanager
def promotions_held(monkeypatch):
    """Promotions wait until the block ends."""
    gate, copy = threading.Event(), saves.copy_share
    monkeypatch.setattr(saves, "copy_share", lambda *args: gate.wait(20) and copy(*args))
    try:
        yield
    finally:
        gate.set()


def promotions_fail(monkeypatch, error=None):
    def refuse(*_):
        raise error or ConnectionError("the network is down")

    monkeypatch.setattr(saves, "copy_share", refuse)


def killed_before_promotion(directory, near, start, monkeypatch, num_steps=3):
    """A run whose last checkpoint is on the scratch alone; its process is gone."""
    run = start(directory, scratch=near, save=EVERY).train(num_steps - 1)
    run.session.wait()
    with monkeypatch.context() as patch:
        promotions_fail(patch)
        run.train(1)
        run.session._saves.wait()
        with pytest.raises(SaveFailedError, match="the network is down"):
            run.session.wait()
    assert names(near)[-1].endswith(f"step-{num_steps:09d}")
    assert not names(directory)[-1].endswith(f"step-{num_steps:09d}")
    return run


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


def flip(place, path, name, at=-1):
    store = open_store(str(place))
    data = bytearray(store.read(f"{path}/{name}"))
    data[at] ^= 1
    store.put(f"{path}/{name}", bytes(data))


@pytest.mark.parametrize("name", ["model.safetensors", "training.json", "rank-00000.json", "manifest.json"])
@pytest.mark.parametrize("damaged", ["scratch", "directory"])
def test_a_bit_that_is_flipped_on_one_tier_comes_from_the_other(directory, near, start, caplog, name, damaged):
    run = start(directory, scratch=near, save=EVERY).train(2)
    run.session.end()
    place = near if damaged == "scratch" else directory
    path = f"{run.session._attempt.name}/step-000000002"
    flip(place, path, name)
    second = start(directory, scratch=near, save=EVERY)
    assert second.restored.progress.step == 2
    assert second.toy.value.tolist() == [2, 2, 2]
    second.session.end()
    said = told(caplog, f"{path}/{name}")
    assert bool(said) == (damaged == "scratch" or name == "manifest.json")  # nearest first: the other is not read


def test_a_checkpoint_that_is_damaged_on_every_tier_is_passed_over(directory, near, start, caplog):
    run = start(directory, scratch=near, save=EVERY).train(1)
    run.session.wait()
    run.train(1)
    run.session.end()
    path = f"{run.session._attempt.name}/step-000000002"
    for place in (near, directory):
        flip(place, path, "model.safetensors")
    assert start(directory, scratch=near).restored.progress.step == 1
    assert told(caplog, "chunk 0 of 1 was altered")


def test_a_damaged_file_on_the_scratch_is_never_promoted(directory, near, start, monkeypatch, caplog):
    run = start(directory, scratch=near, save=EVERY).train(2)
    run.session.wait()
    with monkeypatch.context() as patch, promotions_held(patch):
        run.train(1)
        run.session._saves.writer.wait()
        run.session.boundary(Progress(step=3, batch=3))
        flip(near, f"{run.session._attempt.name}/step-000000003", "model.safetensors")
    run.session._saves.wait()
    run.train(1)
    assert "model.safetensors" in told(caplog, "the save at step 3 failed")[0]
    run.session.end()
    assert names(directory)[-1] == "attempt-0001/step-000000004"
    assert "attempt-0001/step-000000003" not in names(directory)


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


def slowly(run, num_steps):
    """Train, and let everything in the background end before each boundary."""
    for _ in range(num_steps):
        run.session._saves.wait()
        run.train(1)


def full(*_):
    raise OSError(errno.ENOSPC, "No space left on device")


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


def test_runs_share_a_scratch_and_never_touch_one_another(start, near, tmp_path):
    one = start(str(tmp_path / "one"), scratch=near, save=EVERY).train(3)
    two = start(str(tmp_path / "two"), scratch=near, save=EVERY).train(2)
    one.session.wait()
    two.session.wait()
    two.train(1)
    again = start(str(tmp_path / "one"), scratch=near, save=EVERY)
    assert again.restored.progress.step == 3
    again.train(1)
    again.session.end()
    two.session.end()
    assert names(near) == ["attempt-0001/step-000000003", "attempt-0002/step-000000004"]


def test_a_folder_of_the_same_name_that_is_another_runs_is_left_alone(start, near, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("secrets.token_hex", lambda num: "ab" * num)
    one = start(str(tmp_path / "one"), scratch=near, save=EVERY).train(2)
    one.session.end()
    before = {path: path.read_bytes() for path in near.rglob("*") if path.is_file()}
    monkeypatch.setattr("secrets.token_hex", lambda num: ("ab" if num == 2 else "cd") * num)
    two = start(str(tmp_path / "two"), scratch=near, save=EVERY)
    assert two.restored is None
    two.train(4)
    two.session.end()
    assert len(told(caplog, "belongs to another run")) == 1
    assert names(tmp_path / "two")[-1] == "attempt-0001/step-000000004"
    assert {path: path.read_bytes() for path in near.rglob("*") if path.is_file()} == before


def test_a_zombie_commits_on_no_tier_and_does_not_shadow(directory, near, start, monkeypatch):
    old = start(directory, scratch=near, save=EVERY).train(2)
    old.session.wait()
    for store in {near, Path(directory)} if not directory.startswith("memory") else {near}:
        for path in store.rglob("*"):
            os.utime(path, (4e9, 4e9))  # its clock is far ahead
    new = start(directory, scratch=near, save=EVERY).train(1)
    new.session.wait()
    before = names(near), names(directory)
    old.toy.step()
    with pytest.raises(SupersededError, match=r"attempt-0002.*attempt-0001"):
        old.train(3)
    assert (names(near), names(directory)) == before
    new.train(1)
    new.session.end()
    third = start(directory, scratch=near)
    assert third.restored.ref.attempt == new.session._attempt.name
    assert third.restored.progress.step == 4


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


def test_what_a_dead_attempt_left_is_cleaned_on_every_tier(directory, near, start):
    first = start(directory, scratch=near, save=EVERY).train(2)
    first.session.end()
    name = first.session._attempt.name
    for store in (open_store(directory), open_store(near)):
        store.put(f"{name}/step-000000009/model.safetensors", b"half")
        store.put(f"{name}/step-000000002/.rank-00000.json.0123abcd.tmp", b"half")
    second = start(directory, scratch=near, save=SaveEvery(steps=100))
    second.session._saves.wait()
    for place in (directory, near):
        store = open_store(str(place))
        assert "step-000000009" not in store.list(name)
        assert not [file for file in store.list(f"{name}/step-000000002") if file.endswith(".tmp")]
    second.session.end()


def test_folders_of_older_attempts_do_not_pile_up_on_the_scratch(directory, near, start):
    for _ in range(4):
        start(directory, scratch=near, save=EVERY, keep=Keep(last=1)).train(2).session.end()
    assert len(os.listdir(near)) <= 2


# ---- several ranks


def test_each_rank_promotes_its_own_files(toy, tmp_path, near):
    directory = tmp_path / "run"
    together(3, lambda ranks: Start(toy(), directory, ranks, scratch=near).train(3).session.end())
    (path,) = near.glob("*/step-*")
    relative = str(path.relative_to(near))
    assert files_of(directory, relative) == files_of(near, relative)
    assert len(files_of(near, relative)) == 12
    found, _ = together(3, lambda ranks: Start(toy(), directory, ranks, scratch=near).restored.progress.step)
    assert found == [3, 3, 3]


def test_a_rank_that_does_not_see_the_scratch_turns_it_off_for_all(toy, tmp_path, near, caplog):
    directory = tmp_path / "run"

    def run(ranks):
        place = near if ranks.rank != 1 else tmp_path / "on another machine"
        Start(toy(), directory, ranks, scratch=place).train(2).session.end()

    together(2, run)
    assert any("ranks 1 do not see" in said for said in told(caplog, "is not used"))
    assert names(near) == []
    assert names(directory)[-1] == "attempt-0001/step-000000002"


def test_what_one_rank_cannot_put_on_the_scratch_goes_to_the_directory_on_all(toy, tmp_path, near, monkeypatch):
    directory = tmp_path / "run"
    write = CheckpointWriter.write_file

    def refuse(self, name, buffer, *rest):
        if name.startswith("rank-00001") and self._store.url == str(near) and "step-000000002" in self._slot.path:
            full()
        return write(self, name, buffer, *rest)

    monkeypatch.setattr(CheckpointWriter, "write_file", refuse)
    together(2, lambda ranks: Start(toy(), directory, ranks, scratch=near).train(2).session.end())
    assert names(directory)[-1] == "attempt-0001/step-000000002"
    assert "attempt-0001/step-000000002" not in names(near)
    verify([open_store(directory)], next(iter(Lineage(open_store(directory)).candidates())))


def test_several_ranks_go_on_from_a_scratch_and_all_have_it_in_the_directory(toy, tmp_path, near, monkeypatch):
    directory = tmp_path / "run"

    def unpromoted(ranks):
        run = Start(toy(), directory, ranks, scratch=near).train(2)
        run.session._saves.wait()

    together(2, unpromoted)  # ends like a kill: the save at step 2 was never concluded
    assert names(near)[-1] == "attempt-0001/step-000000002"
    assert names(directory)[-1] < "attempt-0001/step-000000002"
    together(2, lambda ranks: Start(toy(), directory, ranks, scratch=near).session.end())
    assert names(directory)[-1] == "attempt-0002/step-000000002"


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


def test_what_is_on_a_scratch_that_one_rank_does_not_see_is_passed_over_by_all(toy, tmp_path, near, caplog):
    directory = tmp_path / "run"

    def unpromoted(ranks):
        run = Start(toy(), directory, ranks, scratch=near).train(2)
        run.session._saves.wait()

    together(2, unpromoted)
    newest = int(names(directory)[-1][-9:])
    assert newest < 2

    def moved(ranks):
        place = near if ranks.rank == 0 else tmp_path / "on another machine"
        return Start(toy(), directory, ranks, scratch=place).restored.progress.step

    found, _ = together(2, moved)
    assert found == [newest, newest]
    assert told(caplog, "step-000000002 cannot be used: on rank 1")
