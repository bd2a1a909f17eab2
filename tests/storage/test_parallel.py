from __future__ import annotations

import threading
import time

import pytest

from resume_core.storage.parallel import run_all, run_steps


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


@pytest.mark.parametrize("num_threads", [1, 2])
def test_steps_of_one_work_stay_in_their_order_and_thread(num_threads):
    done, threads = {0: [], 1: [], 2: []}, {}

    def work(name):
        for number in range(5):
            done[name].append(number)
            threads.setdefault(name, set()).add(threading.get_ident())
            yield

    run_steps(map(work, done), num_threads)
    assert done == {name: [0, 1, 2, 3, 4] for name in done}
    assert all(len(found) == 1 for found in threads.values())


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_no_step_is_begun_after_an_error_and_every_work_is_closed(error):
    failed, done, closed = threading.Event(), [], []

    def work(name):
        try:
            for number in range(1000):
                if name == "fails":
                    failed.set()
                    raise error
                failed.wait(30)
                time.sleep(0.01)
                done.append(number)
                yield
        finally:
            closed.append(name)

    with pytest.raises(error):
        run_steps([work("goes on"), work("fails")], 2)
    assert len(done) < 100
    assert sorted(closed) == ["fails", "goes on"]
