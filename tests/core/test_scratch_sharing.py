"""A scratch that several runs or attempts share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from scratches import EVERY, names, told

from resume_core import Keep, SaveEvery, SupersededError
from resume_core.storage import open_store


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
