"""A scratch on a file system that is really full."""

from __future__ import annotations

import os
import shutil
import subprocess
import uuid
from pathlib import Path

import pytest
import torch

from resume_core import Keep, SaveEvery, saves, schedule
from resume_core.storage import Lineage, open_store, verify

EVERY = SaveEvery(steps=1, minutes=None)


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 1 MiB in memory."""
    folder = tmp_path / "small"
    folder.mkdir()
    if shutil.which("mount") is None or os.geteuid() != 0:
        pytest.skip("mounting a small file system takes root")
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], capture_output=True)
    if mounted.returncode:
        pytest.skip("no file system can be mounted here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def large(toy, num_bytes):
    made = toy()
    made.value = torch.zeros(num_bytes // 4)
    return made


@pytest.mark.parametrize("is_checked", [True, False], ids=["asked before", "found while writing"])
def test_a_scratch_that_fills_up_is_left_for_the_directory_and_taken_again(
    start, toy, tmp_path, small_disk, is_checked, monkeypatch, caplog
):
    if not is_checked:
        monkeypatch.setattr(saves, "require_room", lambda *_: None)
    directory = tmp_path / "run"
    run = start(str(directory), large(toy, 80_000), scratch=small_disk / "fast", save=EVERY)
    run.train(1).session.wait()
    other = small_disk / "other"
    other.write_bytes(bytes(shutil.disk_usage(small_disk).free - 40_000))
    for _ in range(3):
        run.train(1).session.wait()
    (said,) = [r.getMessage() for r in caplog.records if "refuses them" in r.getMessage()]
    assert "Errno 28" in said
    store = open_store(directory)
    newest = next(iter(Lineage(store).candidates()))
    verify([store], newest)
    assert newest.name >= "step-000000003"
    assert sorted(small_disk.rglob("*.tmp")) == []
    other.unlink()
    run.train(2)
    run.session.end()
    assert len(list(small_disk.glob("fast/*/step-*/manifest.json"))) == 1
    assert not [r for r in caplog.records if "failed" in r.getMessage()]


def test_shared_memory_works_as_a_scratch(start, tmp_path):
    if not os.access("/dev/shm", os.W_OK):
        pytest.skip("no shared memory")
    near = Path("/dev/shm") / f"exact-resume-{uuid.uuid4().hex}"
    try:
        run = start(str(tmp_path / "run"), scratch=near, save=EVERY).train(3)
        run.session.end()
        assert len(list(near.glob("*/step-*/manifest.json"))) == 1
        assert start(str(tmp_path / "run"), scratch=near).restored.tier == str(near)
    finally:
        shutil.rmtree(near, ignore_errors=True)


def test_when_both_tiers_are_full_training_goes_on_and_what_was_there_is_whole(
    start, toy, small_disk, monkeypatch, caplog
):
    monkeypatch.setattr(schedule, "RETRY_S", 0.0)
    arguments = {"scratch": small_disk / "fast", "save": EVERY, "keep": Keep(last=1)}
    run = start(str(small_disk / "run"), large(toy, 40_000), **arguments)
    run.train(2).session.wait()
    other = small_disk / "other"
    other.write_bytes(bytes(shutil.disk_usage(small_disk).free - 20_000))
    for _ in range(8):
        run.train(1)
        run.session._saves.wait()
        if "checkpoints are intact" in caplog.text:
            break
    assert "older checkpoints are intact" in caplog.text
    assert "bytes are needed" in caplog.text
    lineage = Lineage(open_store(small_disk / "run"))
    newest = next(iter(lineage.candidates()))
    verify([lineage.store], newest)
    assert int(newest.name[5:14]) < run.num
    assert sorted(small_disk.rglob("*.tmp")) == []
    other.unlink()
    failed_at = run.num
    for _ in range(4):
        run.train(1)
        run.session._saves.wait()
    run.session.end()
    newest = next(iter(lineage.candidates()))
    assert int(newest.name[5:14]) > failed_at
    again = start(str(small_disk / "run"), large(toy, 40_000), **arguments)
    assert again.restored.ref.name == newest.name
    again.session.end()
