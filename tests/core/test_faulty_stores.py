"""Stores that fail at any operation, or take their time, under a whole session."""

from __future__ import annotations

import errno
import logging
import os
import threading
import uuid

import pytest
from storage.faults import Faults, FaultyStore, HeldStore
from walks import Start

from resume_core import directory as directory_module
from resume_core.errors import ResumeError
from resume_core.state import Progress
from resume_core.storage import open_store

CODES = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ECONNRESET)


@pytest.fixture
def around(monkeypatch):
    """Have sessions use a store of ours around the one of their URL."""

    def use(make):
        monkeypatch.setattr(directory_module, "open_store", lambda *args: make(open_store(*args)))

    return use


class InMemory(Start):
    """A walk in a store that lives in memory."""

    @property
    def directory(self):
        return f"memory://{self.root}/run"


@pytest.mark.parametrize("kind", [Start, InMemory], ids=["local", "memory"])
@pytest.mark.parametrize(
    "manner", [{}, {"late": True}, {"halfway": True}], ids=["before", "after it took effect", "halfway"]
)
@pytest.mark.parametrize("nth", [pytest.param(1, id="all", marks=pytest.mark.slow), pytest.param(19, id="some")])
def test_an_error_at_any_operation_of_a_store_loses_nothing(tmp_path, around, kind, manner, nth, caplog):
    caplog.set_level(logging.CRITICAL, "exact_resume")
    expected, ended = kind(tmp_path / "whole").take()["end"], 0
    for number in range(0, 2000, nth):
        code = CODES[number // nth % len(CODES)]
        faults = Faults(number, error=OSError(code, os.strerror(code)))
        around(lambda store, faults=faults: FaultyStore(store, faults, **manner))
        start = kind(tmp_path / f"{number}-{uuid.uuid4().hex}")
        problem = None
        try:
            assert start.take()["end"] == expected
        except (OSError, ResumeError) as error:
            problem = str(error)
        assert problem is None or os.strerror(code) in problem, number
        ended += problem is not None
        around(lambda store: store)
        assert start.take()["end"] == expected, number
        if not faults.failed:
            assert number > 60
            break
    assert ended


@pytest.fixture
def held(around):
    """Files are written when the event is set; and the stores that are there."""
    gate, stores = threading.Event(), []

    def hold(store):
        stores.append(HeldStore(store, gate=gate, operations=("write_at",)))
        return stores[-1]

    around(hold)
    return gate, stores


def test_training_does_not_wait_for_a_slow_store(tmp_path, held):
    gate, stores = held
    walk, session = Start(tmp_path, num_steps=50).session()
    session.start(7)
    session.begin(Progress())
    assert stores[0].arrived.wait(30)
    for step in range(1, 21):
        walk.step()
        session.boundary(Progress(step=step, batch=step))
    gate.set()
    session._saves.writer.wait()
    session.boundary(Progress(step=21, batch=21))  # that of the start is told, and the next one taken
    session.end()
    (attempt,) = (tmp_path / "run").glob("attempt-*")
    names = {path.parent.name for path in attempt.glob("step-*/manifest.json")}
    assert names == {"step-000000021"}  # one save is due, however often it was asked for


def test_a_save_that_is_slow_holds_what_was_staged_and_not_what_came_later(tmp_path, held):
    gate, stores = held
    walk, session = Start(tmp_path, keep=9).session()
    session.start(7)
    session.begin(Progress())
    assert stores[0].arrived.wait(30)
    first = walk.digest()
    for _ in range(5):
        walk.step()
    assert walk.digest() != first
    gate.set()
    session.end()
    again, session = Start(tmp_path).session()
    session.start(7)
    assert again.digest() == first
