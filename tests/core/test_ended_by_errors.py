"""Runs that an exception ends: what is staged is still committed, and a boundary that nothing has left is saved."""

from __future__ import annotations

import os
import signal
import threading
import time
import warnings

import pytest
import torch

from resume_core import SaveEvery
from resume_core.checkpointer import Pending
from resume_core.state import Progress
from resume_core.storage import Lineage, open_store

NEVER = SaveEvery(steps=10**6, minutes=None)


def steps(directory):
    lineage = Lineage(open_store(directory))
    return [int(ref.name.split("-")[1]) for attempt in lineage.attempts() for ref in lineage.checkpoints(attempt.name)]


def test_what_is_staged_is_committed_when_memory_is_out(directory, start, monkeypatch):
    run = start(directory, save=NEVER).train(2)
    write, may_write = Pending.write, threading.Event()

    def late(*args, **kwargs):
        may_write.wait(60)
        return write(*args, **kwargs)

    monkeypatch.setattr(Pending, "write", late)
    run.session.request()
    run.train(1, settle=False)
    assert steps(directory) == [0]
    threading.Timer(0.05, may_write.set).start()
    run.session.end(torch.OutOfMemoryError("CUDA out of memory"))
    assert max(steps(directory)) == 3
    assert start(directory, save=NEVER).num == 3


def test_a_process_that_the_training_forks_waits_for_no_save_and_ends_no_run(directory, start, monkeypatch):
    run = start(directory, save=NEVER).train(2)
    write, may_write = Pending.write, threading.Event()

    def late(*args, **kwargs):
        may_write.wait(60)
        return write(*args, **kwargs)

    monkeypatch.setattr(Pending, "write", late)
    run.session.request()
    run.train(1, settle=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # 3.12 warns of forks beside threads
        child = os.fork()
    if child == 0:
        run.session.stranded(Progress(step=3, batch=3), SystemExit(0))
        run.session.end(SystemExit(0))
        os._exit(7)
    deadline, found = time.monotonic() + 20, 0
    while not found and time.monotonic() < deadline:
        time.sleep(0.01)
        found, status = os.waitpid(child, os.WNOHANG)
    if not found:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert found, "it waits for a thread that it does not have"
    assert os.waitstatus_to_exitcode(status) == 7
    may_write.set()
    run.train(2).session.end()
    assert start(directory, save=NEVER).num >= 3


@pytest.mark.parametrize("in_window", [False, True])
def test_a_boundary_that_nothing_has_left_is_saved(directory, start, in_window):
    run = start(directory, save=NEVER).train(3, in_window=in_window)
    run.session.stranded(Progress(step=3, batch=3, in_window=in_window), OSError("a sample cannot be read"))
    run.session.end(OSError("a sample cannot be read"))
    assert start(directory, save=NEVER).num == 3


@pytest.mark.parametrize(
    "progress",
    [
        Progress(step=3, batch=3, epoch=1),  # hooks between the epochs have run
        Progress(step=3, batch=4),
        Progress(step=3, batch=3, ends_epoch=True),
    ],
)
def test_one_that_something_has_left_is_not(directory, start, progress):
    run = start(directory, save=NEVER).train(3)
    if progress.ends_epoch:
        run.session.boundary(progress)
    run.session.stranded(progress, OSError())
    run.session.end(OSError())
    assert steps(directory) == [0]


def test_one_that_is_saved_is_not_saved_again_and_no_other_is(directory, start, caplog):
    run = start(directory, save=SaveEvery(steps=3, minutes=None)).train(3)
    run.session.stranded(Progress(step=3, batch=3), OSError())
    run.train(1)
    run.session.stranded(Progress(step=4, batch=4), OSError())
    run.train(1)
    run.session.stranded(Progress(step=5, batch=5), OSError())  # a script that passes over bad samples
    run.session.end(OSError())
    assert sorted(steps(directory)) == [0, 3, 4]
    assert caplog.text.count("while a batch was fetched") == 1


def test_a_save_that_fails_there_hides_no_error(directory, start, monkeypatch, caplog):
    run = start(directory, save=NEVER).train(3)
    run.toy.extra = object()  # no checkpoint can hold it
    run.session.stranded(Progress(step=3, batch=3), OSError())
    run.session.end(OSError())
    assert "the save at step 3 failed" in caplog.text
    assert steps(directory) == [0]
