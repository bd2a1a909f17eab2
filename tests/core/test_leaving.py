"""The machine is taken away: a signal, a save at the next boundary, and the end of the process."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest
from departures import NEVER, PAUSE, leaves, left_behind, send
from rank_threads import Start, together
from scratches import EVERY, names, promotions_held

from resume_core import Keep, Preempted, Preemption
from resume_core.session import Session
from resume_core.state import Progress


@pytest.fixture(autouse=True)
def all_put_back(handlers):
    """Nothing is left behind by a run that has ended."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1)}
    yield
    after = {number: signal.getsignal(number) for number in before}
    for number, handler in before.items():
        signal.signal(number, handler)
    assert after == before


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
@pytest.mark.parametrize("in_window", [False, True])
def test_the_next_boundary_saves_wherever_it_is_and_the_process_ends(directory, start, number, in_window, caplog):
    run = start(directory, save=NEVER).train(2)
    send(number)
    assert leaves(run, in_window=in_window) == 143
    assert f"{number.name}: the run is saved at step 3" in caplog.text
    again = start(directory, save=NEVER)
    assert again.restored.progress == Progress(step=3, batch=3, in_window=in_window)
    again.session.end()


def test_what_is_saved_already_is_not_saved_again(directory, start):
    run = start(directory, save=EVERY).train(2)
    run.session.wait()
    send()
    with pytest.raises(Preempted):
        run.session.boundary(Progress(step=2, batch=2))
    run.session.end()
    assert [name.rpartition("-")[2] for name in names(directory)] == ["000000000", "000000001", "000000002"]


@pytest.mark.parametrize("num_steps", [0, 2])
def test_a_signal_before_the_first_batch_is_met_there(directory, start, toy, num_steps):
    if num_steps:
        start(directory, save=EVERY).train(num_steps).session.end()
    session = Session(toy(), directory, save=EVERY)
    restored = session.start(7)
    send()  # while data and model are made ready
    with pytest.raises(Preempted) as left:
        session.begin(restored.progress if restored else Progress())
    session.end(left.value)
    assert [name.rpartition("-")[2] for name in names(directory)][-1] == f"{num_steps:09d}"
    again = start(directory, save=EVERY)
    assert again.restored.progress.step == num_steps
    again.session.end()


def test_signals_that_come_again_or_during_the_save_change_nothing(directory, start, monkeypatch):
    run = start(directory, save=NEVER).train(1)
    send()
    capture = run.toy.capture

    def late():
        send()
        send(signal.SIGUSR1)
        return capture()

    monkeypatch.setattr(run.toy, "capture", late)
    assert leaves(run) == 143
    again = start(directory, save=NEVER)
    assert again.restored.progress.step == 2
    again.session.end()


def test_handlers_that_were_there_are_called_and_put_back(directory, start):
    heard = []
    signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    mine = signal.getsignal(signal.SIGTERM)
    run = start(directory, save=NEVER).train(1)
    send()
    leaves(run)
    assert heard == [signal.SIGTERM]
    assert signal.getsignal(signal.SIGTERM) is mine
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def test_the_code_is_the_users_and_without_signals_none_is_handled(directory, start):
    run = start(directory, save=NEVER, preemption=Preemption(exit_code=75)).train(1)
    send()
    assert leaves(run) == 75
    run = start(directory, save=NEVER, preemption=Preemption(signals=()))
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    run.session.end()


def test_in_another_thread_it_is_said_that_signals_are_not_watched(directory, start, caplog):
    thread = threading.Thread(target=lambda: start(directory, save=EVERY).train(1).session.end())
    thread.start()
    thread.join()
    assert "signals can be watched from the main thread alone" in caplog.text


def test_a_process_that_the_training_forks_dies_of_a_signal_as_ever(directory, start):
    run = start(directory, save=NEVER).train(1)
    child = os.fork()
    if child == 0:
        time.sleep(20)
        os._exit(0)
    time.sleep(0.1)
    os.kill(child, signal.SIGTERM)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM
    run.session.end()


def test_with_a_grace_too_short_for_the_directory_the_scratch_is_first_and_it_is_said(
    directory, near, start, monkeypatch, caplog
):
    run = start(directory, scratch=near, save=NEVER, preemption=Preemption(grace_s=0.2)).train(1)
    run.session.wait()
    with promotions_held(monkeypatch) as release:
        threading.Timer(0.6, release.set).start()
        send()
        leaves(run)
    assert f"the save at step 2 is on {near} alone" in caplog.text
    assert names(near)[-1] == names(directory)[-1] == "attempt-0001/step-000000002"


@pytest.mark.parametrize("asked", [(0,), (1,), (0, 1)])
def test_all_ranks_leave_at_one_boundary_whichever_was_asked(toy, tmp_path, asked):
    def work(ranks):
        run = Start(toy(), tmp_path, ranks, save=NEVER, keep=Keep(last=9)).train(3)
        if ranks.rank in asked:
            time.sleep(0.05 * ranks.rank)
            run.session._leaving._signals.received = "SIGTERM"  # handlers are of the main thread, ranks are processes
        return left_behind(run, 10_000)

    found, _ = together(2, work)
    assert found[0] is not None
    assert found[0] == found[1]
    found, _ = together(2, lambda ranks: Start(toy(), tmp_path, ranks).restored.progress.step)
    assert found[0] == found[1]


@pytest.mark.parametrize("save", [EVERY, NEVER])
def test_a_run_whose_time_is_over_leaves_as_long_before_as_saving_takes(directory, start, save, caplog):
    now = [0.0]
    run = start(directory, save=save, preemption=Preemption(max_hours=1)).train(1)
    run.session.wait()
    leaving = run.session._leaving
    leaving._clock, leaving._save_s = lambda: now[0], lambda: 40.0
    leaving._ends, leaving._looked_s = [(3600.0, "Preemption(max_hours=1)")], 0.0
    for now[0] in range(100, 3300, 100):
        run.train(1)
    now[0] = 3400.0  # a batch takes 100 s and a save 40 s
    assert leaves(run) == 143
    assert "Preemption(max_hours=1): the run is saved" in caplog.text


def test_the_time_limit_of_a_slurm_job_is_met(directory, start, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "41")
    monkeypatch.setenv("SLURM_JOB_END_TIME", str(int(time.time()) + 5))
    requeued = []
    monkeypatch.setattr("resume_core.leaving.requeue", lambda job, log: requeued.append(job))
    run = start(directory, save=EVERY)  # begins, so that it gets on by a batch
    assert leaves(run) == 143
    assert requeued == ["41"]
    monkeypatch.setenv("SLURM_JOB_END_TIME", str(int(time.time()) + 10_000))
    again = start(directory, save=EVERY)
    assert again.restored.progress.step == 1
    again.train(1).session.end()


def measured(start, directory, grace_s=0.05, **arguments):
    """A run that has measured a pause which is longer than its grace."""
    run = start(directory, save=NEVER, preemption=Preemption(grace_s=grace_s), **arguments).train(1)
    with run.session.pause(PAUSE):
        time.sleep(0.1)
    return run


def test_before_a_long_pause_the_run_is_saved_and_a_signal_in_it_ends_the_process_at_once(directory, start):
    run = measured(start, directory)
    run.toy.step()
    run.session.boundary(Progress(step=2, batch=2, in_window=True), lambda: [PAUSE])
    run.toy.step()  # the batch that the validation follows
    with pytest.raises(Preempted) as left, run.session.pause(PAUSE):
        send()
    run.session.end(left.value)
    again = start(directory, save=NEVER)
    assert again.restored.progress == Progress(step=2, batch=2, in_window=True)
    again.session.end()


def test_what_ends_in_a_pause_says_so_once_and_has_its_job_queued_again(directory, start, monkeypatch, caplog):
    monkeypatch.setenv("SLURM_JOB_ID", "41")
    requeued = []
    monkeypatch.setattr("resume_core.leaving.requeue", lambda job, log: requeued.append(job))
    run = measured(start, directory)
    run.session.boundary(Progress(step=1, batch=1, in_window=True), lambda: [PAUSE])
    with pytest.raises(Preempted) as left, run.session.pause(PAUSE):
        send(signal.SIGUSR1)
    run.session.end(left.value)
    run.session.end(left.value)
    assert caplog.text.count(f"SIGUSR1: the run was saved before this {PAUSE}, and is not kept until its end") == 1
    assert requeued == ["41"]


def test_a_signal_in_the_batch_before_a_long_pause_ends_the_process_there(directory, start):
    run = measured(start, directory)
    run.session.boundary(Progress(step=1, batch=1), lambda: [PAUSE])
    send()
    with pytest.raises(Preempted) as left, run.session.pause(PAUSE):
        raise AssertionError("the pause began")
    send()  # while the run ends: noted, and nothing else
    run.session.end(left.value)


@pytest.mark.parametrize(("grace_s", "ahead"), [(30.0, [PAUSE]), (0.05, [])])
def test_a_pause_that_is_short_or_came_unforeseen_is_brought_to_its_end(directory, start, grace_s, ahead):
    run = measured(start, directory, grace_s)
    run.toy.step()
    run.session.boundary(Progress(step=2, batch=2), lambda: ahead)
    run.num = 2
    with run.session.pause(PAUSE):
        send()
    assert leaves(run) == 143
    again = start(directory, save=NEVER)
    assert again.restored.progress.step == 3
    again.session.end()


def test_all_ranks_save_before_what_rank_0_has_found_long(toy, tmp_path):
    def work(ranks):
        run = Start(toy(), tmp_path, ranks, save=NEVER, preemption=Preemption(grace_s=0.05))
        run.session._leaving.is_long = lambda pauses_s, ahead: any(pauses_s.get(kind, 0) > 0.05 for kind in ahead())
        run.train(1)
        with run.session.pause(PAUSE):
            time.sleep(0.2 if ranks.rank == 0 else 0.0)
        time.sleep(0.1)
        run.session._boundaries._meet_at = 2  # not when two seconds are over, which are many batches here
        run.train(1)
        run.session.boundary(Progress(step=3, batch=3), lambda: [PAUSE])
        run.session.end()
        return run.session.has_checkpoints

    together(2, work)
    assert names(tmp_path)[-1].endswith("step-000000003")
