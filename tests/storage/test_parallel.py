from __future__ import annotations

import threading
import time

import pytest

from resume_core.storage.parallel import run_all


@pytest.mark.parametrize("num_threads", [1, 3])
def test_every_task_is_run_and_all_are_over_at_the_end(num_threads):
    done = []
    run_all((lambda number=number: done.append(number) for number in range(20)), num_threads)
    assert sorted(done) == list(range(20))


def test_tasks_run_beside_one_another():
    meeting = threading.Barrier(3, timeout=30)
    run_all([meeting.wait] * 3, 3)  # would break when one had to end before the next begins


@pytest.mark.parametrize("num_threads", [1, 2])
def test_the_error_of_the_first_task_that_failed_is_raised_and_what_waits_is_not_run(num_threads):
    begun = []

    def fail(number):
        begun.append(number)
        time.sleep(0.02)  # all of them would take seconds
        raise ValueError(number)

    with pytest.raises(ValueError, match=r"^0$"):
        run_all((lambda number=number: fail(number) for number in range(200)), num_threads)
    assert len(begun) < 200


def test_no_task_runs_on_after_an_error():
    failed, running = threading.Event(), []

    def slow():
        failed.wait(30)
        running.append(1)

    def fail():
        failed.set()
        raise OSError("no")

    with pytest.raises(OSError, match="no"):
        run_all([slow, fail], 2)
    assert running == [1]
