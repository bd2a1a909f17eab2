"""Disks that are full, read-only or broken: training goes on as long as it may, and loses nothing."""

from __future__ import annotations

import errno
import logging
import os
import re
import shutil
import subprocess

import pytest
from kills import Death, deaths, finish, newest_committed
from walks import Start

from resume_core import SaveFailedError
from resume_core.state import Progress

PAGE = 4096
CODES = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS)


@pytest.fixture
def small_disk(tmp_path):
    """A file system of one MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1M,mode=755", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("mounting a small tmpfs takes root")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


class Walking:
    """A run in this process, one step at a time."""

    def __init__(self, root, **changes):
        self.start = Start(root, num_steps=1000, **changes)
        self.walk, self.session = self.start.session()
        self.session.start(7)
        self.progress = Progress()
        self.session.begin(self.progress)
        self.session._saves.writer.wait()

    def step(self):
        self.walk.step()
        self.progress = Progress(step=self.progress.step + 1, batch=self.progress.batch + 1)
        self.session.boundary(self.progress)
        self.session._saves.writer.wait()

    def learn(self):
        """What the last save came to; a boundary would take the next one."""
        self.session._saves.conclude(self.session._saves.outcomes(), strict=False)

    def found(self):
        """The step that a new start would go on from."""
        _, session = self.start.session()
        return session.start(7).progress.step


def leave(folder, free_bytes):
    """Take all space but so much."""
    (folder / "ballast").write_bytes(b"")
    space = os.statvfs(folder)
    with open(folder / "ballast", "wb") as file:
        os.posix_fallocate(file.fileno(), 0, space.f_bavail * space.f_frsize - free_bytes)


def test_a_disk_that_is_full_at_any_point_of_a_save_costs_that_save_alone(small_disk, caplog):
    caplog.set_level(logging.ERROR, "exact_resume")
    run = Walking(small_disk, keep=2)
    for _ in range(3):
        run.step()
    run.learn()
    num_failed = 0
    for num_pages in range(200):
        before = run.progress.step
        leave(small_disk, num_pages * PAGE)
        caplog.clear()
        run.step()
        run.learn()
        said = [record.getMessage() for record in caplog.records]
        if not said:
            assert run.found() == before + 1
            break
        num_failed += 1
        assert f"the save at step {before + 1} failed" in said[0]
        assert str(run.start.directory) in said[0]
        assert "are free" in said[0]
        assert run.found() == before
        os.unlink(small_disk / "ballast")
        run.step()
        run.learn()
        assert run.found() == before + 2
    assert num_failed > 10
    run.session.end()


def test_the_bytes_that_are_missing_are_told(small_disk, caplog):
    run = Walking(small_disk)
    run.learn()
    leave(small_disk, 2 * PAGE)
    run.step()
    run.learn()
    assert re.search(r"24\d{3} bytes are needed and \d{1,4} are free", caplog.text)
    assert "older checkpoints are intact" in caplog.text


def test_a_disk_that_stays_full_ends_training_after_three_saves_and_the_checkpoint_before_is_whole(small_disk):
    run = Walking(small_disk)
    run.step()
    run.learn()
    leave(small_disk, 0)
    for _ in range(3):
        run.step()
    with pytest.raises(SaveFailedError, match="No space left on device") as caught:
        run.step()
    assert isinstance(caught.value.__cause__, OSError)
    assert run.found() == 1
    os.unlink(small_disk / "ballast")
    again = Start(small_disk, num_steps=5)
    assert again.take()["restored"][1] == 1


def test_a_disk_that_is_full_at_the_start_ends_the_run_before_it_has_trained(small_disk):
    leave(small_disk, 3 * PAGE)
    run = Walking(small_disk)
    with pytest.raises(SaveFailedError, match=r"bytes are needed and \d+ are free.*no checkpoint exists yet"):
        run.step()
    assert run.progress.step == 1


def test_a_folder_that_turns_read_only_is_named_and_training_goes_on(tmp_path, caplog):
    run = Walking(tmp_path, keep=99)
    run.step()
    run.learn()
    (attempt,) = run.start.directory.glob("attempt-*")
    command = ["chattr", "+i", str(attempt)] if os.geteuid() == 0 else ["chmod", "500", str(attempt)]
    if subprocess.run(command, capture_output=True).returncode:
        pytest.skip("no way to keep root from writing here")
    try:
        run.step()
        run.learn()
        assert "the save at step 2 failed" in caplog.text
        assert str(attempt) in caplog.text
        assert run.found() == 1
    finally:
        subprocess.run(["chattr", "-i", str(attempt)] if os.geteuid() == 0 else ["chmod", "700", str(attempt)])
    run.step()
    run.learn()
    assert run.found() == 3


on_linux = pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="/proc tells which file a call is about")
long = [pytest.mark.slow, pytest.mark.timeout(1800)]


@on_linux
@pytest.mark.parametrize("lasting", [False, True], ids=["once", "from then on"])
@pytest.mark.parametrize("nth", [pytest.param(1, id="all", marks=long), pytest.param(61, id="some")])
def test_an_error_at_any_operation_ends_the_run_clearly_or_not_at_all(tmp_path, nth, lasting):
    whole = Start(tmp_path / "whole", num_steps=3)
    (expected,) = finish(whole)
    start = Start(tmp_path / "cut", num_steps=3)
    ended = set()
    for death in deaths(expected["operations"])[::nth]:
        code = CODES[death.number // nth % len(CODES)]
        shutil.rmtree(start.root, ignore_errors=True)
        trouble = Death(death.number, death.halfway, code, lasting)
        (found,) = finish(start, trouble)
        problem = found["problem"]
        ended.add(problem is None)
        if problem is None:
            assert found["end"] == expected["end"], trouble
        else:
            assert problem.startswith(("SaveFailedError", "OSError")), (trouble, problem)
            assert str(start.directory) in problem, (trouble, problem)
            assert os.strerror(code) in problem, (trouble, problem)
        newest = newest_committed(start.directory)
        (again,) = finish(start.but(name="again"))
        assert again["end"] == expected["end"], trouble
        assert (again["restored"] and again["restored"][0]) == newest, trouble
    assert False in ended
    assert True in ended or (lasting and nth > 1)  # the last operations of a run take no space
