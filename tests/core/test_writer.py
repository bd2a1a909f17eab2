"""One save in flight beside training."""

from __future__ import annotations

import threading

import pytest

from resume_core.writer import Writer


def test_a_job_runs_beside_the_caller_and_its_outcome_is_taken_once():
    writer, gate = Writer(), threading.Event()
    writer.submit(gate.wait)
    assert writer.busy
    assert writer.take_outcome() == (False, None)
    gate.set()
    writer.wait()
    assert writer.busy  # until the outcome is taken: a job may end between two looks
    assert writer.take_outcome() == (True, None)
    assert not writer.busy
    assert writer.take_outcome() == (False, None)


def test_a_second_job_is_refused_while_the_outcome_of_the_first_is_not_taken():
    writer = Writer()
    writer.submit(lambda: None)
    with pytest.raises(RuntimeError, match="in flight"):
        writer.submit(lambda: None)


def test_a_failure_keeps_its_type_and_its_traceback():
    def fails():
        raise OSError(28, "No space left on device")

    writer = Writer()
    writer.submit(fails)
    writer.wait()
    ended, error = writer.take_outcome()
    assert ended
    assert isinstance(error, OSError)
    names = []
    trace = error.__traceback__
    while trace is not None:
        names.append(trace.tb_frame.f_code.co_name)
        trace = trace.tb_next
    assert "fails" in names


def test_waiting_longer_than_the_timeout_is_a_timeout_error():
    writer, gate = Writer(), threading.Event()
    writer.submit(gate.wait)
    with pytest.raises(TimeoutError, match=r"0\.01 s"):
        writer.wait(0.01)
    gate.set()
    writer.wait()


def test_no_thread_is_left_between_two_saves():
    writer = Writer()
    writer.submit(lambda: None)
    writer.wait()
    for thread in threading.enumerate():
        if thread.name == "exact-resume-writer":
            thread.join(5)
    assert not [t for t in threading.enumerate() if t.name == "exact-resume-writer"]
