"""Places on a disk that have gone bad: what lies there is damage of that copy, not the end of the run."""

from __future__ import annotations

import errno
import io
import os

import pytest
from rank_threads import Start, together

from resume_core import Keep, SaveEvery
from resume_core.errors import CorruptCheckpointError
from resume_core.storage import local

EVERY = SaveEvery(steps=1, minutes=None)


class Disk:
    """Answers EIO, or another error, for files whose path ends in one of ``bad``."""

    def __init__(self):
        self.bad, self.code, self.num_refused, self.lasts = (), errno.EIO, 0, True

    def refuse(self, path):
        if self.bad and str(path).endswith(self.bad):
            self.num_refused += 1
            if self.lasts or self.num_refused == 1:
                raise OSError(self.code, os.strerror(self.code), str(path))

    def refusing(self, call):
        def refused(path, *args, **options):
            self.refuse(path)
            return call(path, *args, **options)

        return refused

    def readv(self, fd, views):
        self.refuse(os.readlink(f"/proc/self/fd/{fd}"))
        return os.readv(fd, views)

    def open(self, path, mode="r", **options):
        file = open(path, mode, **options)  # noqa: SIM115
        if mode == "rb" and options.get("buffering") != 0:
            return Closing(self, path, file)
        return file


class Closing(io.BufferedReader):
    def __init__(self, disk, path, file):
        super().__init__(file.detach())
        self._disk, self._path = disk, path

    def read(self, *args):
        self._disk.refuse(self._path)
        return super().read(*args)


class Os:
    """``os`` with the reading of that disk."""

    def __init__(self, disk):
        self.readv = disk.readv
        self.listdir, self.stat = disk.refusing(os.listdir), disk.refusing(os.stat)

    def __getattr__(self, name):
        return getattr(os, name)


@pytest.fixture
def disk(monkeypatch):
    if not os.path.exists("/proc/self/fd"):
        pytest.skip("/proc tells which file a call is about")
    disk = Disk()
    monkeypatch.setattr(local, "os", Os(disk))
    monkeypatch.setattr(local, "open", disk.open, raising=False)
    monkeypatch.setattr(local, "_READ_PAUSE_S", 0.0)
    return disk


FILES = ("manifest.json", "model.safetensors", "rank-00000.json")


@pytest.mark.parametrize("name", FILES)
def test_the_older_checkpoint_is_used_and_the_file_named(tmp_path, start, disk, caplog, name):
    start(tmp_path / "run", save=EVERY).train(2).session.end()
    disk.bad = (f"step-000000002/{name}",)
    again = start(tmp_path / "run", save=EVERY)
    assert again.restored.progress.step == 1
    assert "step-000000002 cannot be used" in caplog.text
    assert name in caplog.text
    assert os.strerror(errno.EIO) in caplog.text
    again.session.end()


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damaged", ["scratch", "run"])
def test_the_other_tier_is_used(tmp_path, start, disk, name, damaged):
    places = {"directory": tmp_path / "run", "scratch": tmp_path / "scratch"}
    start(**places, save=EVERY).train(2).session.end()
    (folder,) = (tmp_path / damaged).glob("*/step-000000002")
    disk.bad = (str(folder / name),)
    again = start(**places, save=EVERY)
    assert again.restored.progress.step == 2
    assert again.toy.value.tolist() == [2, 2, 2]
    again.session.end()


def test_a_scratch_on_a_disk_that_is_gone_is_done_without(tmp_path, start, disk):
    places = {"directory": tmp_path / "run", "scratch": tmp_path / "scratch"}
    start(**places, save=EVERY).train(2).session.end()
    (claim,) = (tmp_path / "scratch").glob("*/attempt.json")
    disk.bad = (str(claim),)
    again = start(**places, save=EVERY)
    assert again.restored.progress.step == 2
    again.session.end()


def test_the_file_of_an_attempt_that_is_lost_hides_only_what_came_before(tmp_path, start, disk, caplog):
    first = start(tmp_path, save=EVERY).train(1)
    first.session.end()
    disk.bad = (f"{first.session._attempt.name}/attempt.json",)
    assert start(tmp_path, save=EVERY).restored.progress.step == 1
    assert "attempt.json cannot be read any more" in caplog.text


def test_all_ranks_use_the_older_one_when_a_file_of_one_is_lost(toy, tmp_path, disk):
    together(2, lambda ranks: Start(toy(), tmp_path, ranks).train(3).session.end())
    disk.bad = ("step-000000003/rank-00001.safetensors",)
    found, _ = together(2, lambda ranks: Start(toy(), tmp_path, ranks).restored.progress.step)
    assert found == [2, 2]


def test_what_can_be_read_at_the_next_try_is_no_damage(tmp_path, start, disk, caplog):
    start(tmp_path, save=EVERY).train(2).session.end()
    disk.bad, disk.lasts = ("step-000000002/model.safetensors",), False
    assert start(tmp_path, save=EVERY).restored.progress.step == 2
    assert disk.num_refused > 1
    assert "cannot be used" not in caplog.text


def test_when_all_is_lost_the_run_stops(tmp_path, start, disk):
    start(tmp_path, save=EVERY).train(1).session.end()
    disk.bad = ("model.safetensors",)
    with pytest.raises(CorruptCheckpointError, match=os.strerror(errno.EIO)):
        start(tmp_path, save=EVERY)


def test_what_is_only_out_of_reach_stops_the_start_and_costs_no_progress(tmp_path, start, disk):
    start(tmp_path, save=EVERY).train(1).session.end()
    disk.bad, disk.code = ("step-000000001/model.safetensors",), errno.EACCES
    with pytest.raises(PermissionError):
        start(tmp_path, save=EVERY)


LOST = ("folder", "manifest.json")


def lose(disk, attempt, step, what):
    """The folder of an attempt cannot be listed; or nobody can tell whether a manifest is there."""
    disk.bad = (attempt,) if what == "folder" else (f"step-{step:09d}/manifest.json",)


@pytest.mark.parametrize("what", LOST)
def test_a_lost_name_costs_what_is_behind_it_and_no_more(tmp_path, start, disk, caplog, what):
    start(tmp_path, save=EVERY).train(2).session.end()
    second = start(tmp_path, save=EVERY).train(2)
    second.session.end()
    lose(disk, second.session._attempt.name, 4, what)
    again = start(tmp_path, save=EVERY)
    assert again.restored.progress.step == (2 if what == "folder" else 3)
    assert os.strerror(errno.EIO) in caplog.text
    again.train(2).session.end()
    assert start(tmp_path, save=EVERY).restored.progress.step == again.restored.progress.step + 2


@pytest.mark.parametrize("what", LOST)
def test_a_run_of_which_nothing_can_be_found_never_begins_anew(tmp_path, start, disk, what):
    first = start(tmp_path, save=EVERY).train(1)
    first.session.end()
    disk.bad = (first.session._attempt.name,) if what == "folder" else ("manifest.json",)
    with pytest.raises(CorruptCheckpointError, match=os.strerror(errno.EIO)):
        start(tmp_path, save=EVERY)


def test_all_ranks_use_the_older_one_when_one_cannot_look_for_a_manifest(toy, tmp_path, disk):
    together(2, lambda ranks: Start(toy(), tmp_path, ranks).train(3).session.end())
    lose(disk, "", 3, "manifest.json")
    found, _ = together(2, lambda ranks: Start(toy(), tmp_path, ranks).restored.progress.step)
    assert found == [2, 2]


def test_old_checkpoints_go_on_being_deleted_beside_a_lost_folder(tmp_path, start, disk, caplog):
    first = start(tmp_path, save=EVERY, keep=Keep(last=1)).train(2)
    first.session.end()
    second = start(tmp_path, save=EVERY, keep=Keep(last=1))
    lose(disk, first.session._attempt.name, 0, "folder")
    second.train(4).session.end()
    (own,) = tmp_path.glob(f"{second.session._attempt.name}")
    assert [folder.name for folder in sorted(own.glob("step-*"))] == ["step-000000006"]
    (left,) = tmp_path.glob(f"{first.session._attempt.name}")
    assert sorted(folder.name for folder in left.glob("step-*")) == ["step-000000002"]
    assert caplog.text.count("cannot be listed any more") == 1
