"""What ``exact-resume verify`` finds, and leaves alone."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner
from walks import Walk

from resume_core import Keep, SaveEvery
from resume_core.cli import app
from resume_core.cli.verify.check import Copy
from resume_core.ranks import Ranks
from resume_core.session import Session
from resume_core.state import Progress
from resume_core.storage import open_store


@pytest.fixture
def run(tmp_path):
    """A run of four checkpoints."""
    return trained(str(tmp_path / "run"))


def trained(directory, num_steps=3, keep=None, **arguments):
    every = SaveEvery(steps=1, minutes=None)
    walk = Walk(Ranks(), {})
    session = Session(walk, directory, save=every, keep=keep or Keep(last=9), **arguments)
    restored = session.start(7)
    begin = restored.progress if restored else Progress()
    session.begin(begin)
    for step in range(begin.step + 1, num_steps + 1):
        walk.step()
        session._saves.writer.wait()
        session.boundary(Progress(step=step, batch=step))
    session.end()
    return directory


def verify(*arguments):
    found = CliRunner().invoke(app, ["verify", *arguments])
    return found.exit_code, found.stdout + found.stderr


def files(directory, pattern):
    return sorted(Path(directory).glob(pattern))


def test_a_run_whose_checkpoints_are_whole(run):
    code, text = verify(run)
    assert code == 0
    assert "4 of 4 whole" in text
    assert all(path.name in text for path in files(run, "*/step-*"))


@pytest.mark.parametrize("name", ["model.safetensors", "training.json", "rank-00000.json", "manifest.json"])
def test_one_bit(run, name):
    path = files(run, f"*/step-000000002/{name}")[0]
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    code, text = verify(run)
    assert code == 1
    assert "1 of 4 damaged" in text
    assert name in text.replace("\n", "")


def test_a_file_that_is_gone(run):
    files(run, "*/step-000000002/training.safetensors")[0].unlink()
    code, text = verify(run)
    assert (code, "1 of 4 damaged" in text) == (1, True)


def test_an_attempt_that_cannot_be_read(run):
    files(run, "*/attempt.json")[0].write_bytes(b"{}")
    code, text = verify(run)
    assert code == 1
    assert "attempt.json" in text.replace("\n", "")


def test_as_json(run):
    files(run, "*/step-000000001/model.safetensors")[0].write_bytes(b"")
    code, text = verify(run, "--json")
    rows = json.loads(text[text.index("{") :])["copies"]
    assert code == 1
    assert [row["state"] for row in rows] == ["whole", "whole", "damaged", "whole"]
    assert [row["path"].rpartition("/")[2] for row in rows] == [f"step-{step:09d}" for step in (3, 2, 1, 0)]
    assert "model.safetensors" in rows[2]["problem"]
    assert all(row["size_bytes"] > 0 for row in rows if row["state"] == "whole")


@pytest.mark.parametrize(("what", "num"), [("", 4), ("/step-000000002", 1), ("/step-00000000", 4)])
def test_an_attempt_or_a_checkpoint_by_its_name(run, what, num):
    attempt = files(run, "attempt-*")[0].name
    code, text = verify(f"{run}/{attempt}{what}")
    assert (code, f"{num} of {num} whole" in text) == (0, True)


def test_the_newest_alone(run):
    files(run, "*/step-000000002/model.safetensors")[0].write_bytes(b"")
    code, text = verify(run, "--newest")
    assert (code, "1 of 1 whole" in text) == (0, True)


def test_every_tier_is_checked(tmp_path):
    directory, scratch = str(tmp_path / "run"), str(tmp_path / "scratch")
    trained(directory, scratch=scratch)
    code, text = verify(directory, "--scratch", scratch)
    assert code == 0
    num = len(files(directory, "*/*/manifest.json")) + len(files(scratch, "*/*/manifest.json"))
    assert f"{num} of {num} whole" in text
    files(scratch, "*/*/model.safetensors")[-1].write_bytes(b"")
    code, text = verify(directory, "--scratch", scratch)
    assert (code, f"1 of {num} damaged" in text) == (1, True)  # although the directory has a whole copy
    assert verify(directory)[0] == 0


def test_one_that_is_deleted_while_others_are_read_is_not_damaged(run, monkeypatch):
    plain = Copy.check

    def late(copy):
        if copy.ref.name == "step-000000002":
            shutil.rmtree(next(Path(run).glob("*/step-000000001")))  # as retention does, the manifest first
        return plain(copy)

    monkeypatch.setattr(Copy, "check", late)
    code, text = verify(run)
    assert (code, "1 of 4 deleted meanwhile" in text) == (0, True)


def test_a_store_that_refuses_says_nothing_of_what_lies_there(run, monkeypatch):
    def refuse(store, key):
        raise PermissionError(13, "Permission denied", key)

    monkeypatch.setattr("resume_core.storage.local.LocalStore.open_file", refuse)
    code, text = verify(run)
    assert (code, "4 of 4 not readable" in text) == (2, True)
    files(run, "*/step-000000001/model.safetensors")[0].write_bytes(b"")
    code, text = verify(run)
    assert (code, "1 of 4 damaged, 3 of 4 not readable" in text) == (1, True)


def test_a_run_without_a_checkpoint_has_nothing_to_check(run):
    for path in files(run, "*/step-*"):
        shutil.rmtree(path)
    code, text = verify(run)
    assert (code, "No committed checkpoint exists" in text) == (2, True)


def test_thinned_checkpoints(tmp_path):
    directory = trained(str(tmp_path / "run"), 5, Keep(last=1, every_steps=1, thin_after=2))
    code, text = verify(directory)
    assert code == 0
    assert "weights only" in text
    steps = re.findall(r"step-(\d+)", text)
    assert len(steps) == 5
    assert steps == sorted(steps, reverse=True)


def test_a_store_that_is_no_disk(tmp_path):
    url = f"memory://{tmp_path.name}/run"
    trained(url)
    assert verify(url)[0] == 0
    store = open_store(url)
    (attempt,) = store.list("")
    store.put(f"{attempt}/step-000000003/model.safetensors", b"no")
    assert verify(url)[0] == 1


@pytest.mark.parametrize("name", ["", "/attempt-0001-ffff", "/nothing"])
def test_nothing_to_check(tmp_path, name):
    (tmp_path / "empty").mkdir()
    code, text = verify(f"{tmp_path / 'empty'}{name}")
    assert code == 2
    assert "nothing was checked" in text


def test_a_name_that_is_not_there_lists_what_is(run):
    attempt = files(run, "attempt-*")[0].name
    code, text = verify(f"{run}/{attempt}/step-000000009")
    assert code == 2
    assert f"The nearest are {attempt}/step-000000003, {attempt}/step-000000002" in text


def test_nothing_is_written(run):
    before = {path: path.stat().st_mtime_ns for path in files(run, "**/*")}
    verify(run)
    assert before == {path: path.stat().st_mtime_ns for path in files(run, "**/*")}


def lost(run, step):
    """The folder of a checkpoint whose manifest somebody has removed."""
    path = files(run, f"*/step-{step:09d}/manifest.json")[0]
    path.unlink()
    return path.parent


def test_a_committed_checkpoint_without_its_manifest_is_damaged(run):
    lost(run, 3)
    code, text = verify(run)
    assert (code, "1 of 4 damaged" in text) == (1, True)
    text = text.replace("\n", "")
    assert "step-000000003 is damaged: its manifest.json is missing" in text
    assert "says that it was committed" in text
    assert verify(run, "3")[0] == verify(run, "--newest")[0] == verify(run, "latest")[0] == 1
    assert verify(run, "2")[0] == 0


def test_an_older_one_without_its_manifest_may_have_been_deleted_in_part(run):
    lost(run, 1)
    code, text = verify(run)
    assert (code, "3 of 3 whole; 1 deleted in part, or damaged" in text) == (0, True)


def test_all_manifests_are_missing(run):
    for step in range(4):
        lost(run, step)
    code, text = verify(run)
    assert (code, "4 of 4 damaged" in text) == (1, True)
