"""A save that failed in the background is heard of: at the next boundary, by `wait`, and at the end."""

from __future__ import annotations

import logging
import traceback

import pytest
from walks import Start

from resume_core import SaveFailedError
from resume_core.checkpointer import Pending
from resume_core.state import Progress


def a_broken_disk(*args, **kwargs):
    raise OSError(28, "No space left on device")


@pytest.fixture
def session(tmp_path, monkeypatch, caplog):
    """One save was made, and the next has failed in the background."""
    caplog.set_level(logging.ERROR, "exact_resume")
    _, session = Start(tmp_path, num_steps=9).session()
    session.start(7)
    session.begin(Progress())
    session.wait()
    with monkeypatch.context() as broken:
        broken.setattr(Pending, "write", a_broken_disk)
        session.boundary(Progress(step=1, batch=1))
        session._saves.writer.wait()
    return session


def check_traceback(error):
    assert type(error) is OSError
    assert any(frame.name == "a_broken_disk" for frame in traceback.extract_tb(error.__traceback__))


def test_the_next_boundary_logs_type_and_traceback_and_training_goes_on(session, caplog):
    assert not caplog.records
    session.boundary(Progress(step=2, batch=2))
    (record,) = [record for record in caplog.records if "failed" in record.getMessage()]
    assert "the save at step 1 failed (OSError: [Errno 28] No space left on device)" in record.getMessage()
    check_traceback(record.exc_info[1])
    session.end()


def test_wait_raises_it_with_its_cause(session):
    with pytest.raises(SaveFailedError, match=r"OSError: .*No space left on device") as caught:
        session.wait()
    check_traceback(caught.value.__cause__)
    session.wait()  # told once
    session.end()


def test_the_end_of_the_run_raises_it_with_its_cause(session):
    with pytest.raises(SaveFailedError, match=r"OSError: .*No space left on device") as caught:
        session.end()
    check_traceback(caught.value.__cause__)


def test_an_error_that_ended_training_is_not_replaced_and_the_failed_save_is_logged(session, caplog):
    session.end(KeyError("the user's"))
    assert "the save at step 1 failed" in caplog.text
    assert "a_broken_disk" in caplog.text
