"""SIGKILL at every moment of a save that goes over a scratch; then the next start, whatever became of the tiers."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import warnings
from pathlib import Path

import pytest
from dying import MOMENTS, die

from resume_core import SaveEvery
from resume_core.state import Progress
from resume_core.storage import Lineage, open_store, verify

EVERY = SaveEvery(steps=1, minutes=None)
STEP = 3


def train_and_die(start, directory, near, moment):
    run = start(directory, scratch=near, save=EVERY)
    for _ in range(STEP + 3):
        run.train(1)
        run.session.wait()
        die_once(moment, run, near)


def die_once(moment, run, near):
    if run.num == STEP - 1:
        die(moment, STEP, str(near))


def in_child(work):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        with contextlib.suppress(BaseException), open(os.devnull, "w") as nowhere:
            sys.stderr = nowhere
            work()
        os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def flip(place, newest):
    """One bit of the weights of the newest checkpoint that is committed there."""
    folders = sorted(Path(place).glob("*/step-*/manifest.json"))
    path = folders[-1].parent / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 4
    path.write_bytes(bytes(data))
    return int(folders[-1].parent.name[5:14]) == newest


def committed(place):
    return [int(path.parent.name[5:14]) for path in Path(place).glob("*/step-*/manifest.json")]


@pytest.mark.parametrize("then", ["intact", "scratch gone", "scratch flipped", "directory flipped"])
@pytest.mark.parametrize("moment", MOMENTS)
def test_the_newest_state_that_is_whole_anywhere_is_the_one_that_goes_on(start, tmp_path, moment, then, caplog):
    directory, near = tmp_path / "run", tmp_path / "scratch"
    assert in_child(lambda: train_and_die(start, str(directory), near, moment)) == -signal.SIGKILL
    if then == "scratch gone":
        shutil.rmtree(near)
    on_scratch, in_directory = committed(near), committed(directory)
    newest = max(on_scratch + in_directory)
    expected = newest
    if then == "scratch flipped" and flip(near, newest) and newest not in in_directory:
        expected = max(in_directory)
    if then == "directory flipped" and flip(directory, newest) and newest not in on_scratch:
        expected = max(on_scratch + [step for step in in_directory if step != newest])
    run = start(str(directory), scratch=near, save=EVERY)
    assert run.restored.progress.step == expected
    assert run.toy.value.tolist() == [expected] * 3
    run.train(2)
    run.session.boundary(Progress(step=run.num, batch=run.num))
    run.session.end()
    store = open_store(directory)
    refs = list(Lineage(store).candidates())
    assert int(refs[0].name[5:14]) == expected + 2
    verify([store], refs[0])
    for place in (directory, near):
        folders = [path for path in place.glob("attempt-0001-*/step-*") if not (path / "manifest.json").exists()]
        assert folders == []
