"""What a run does when a notice comes."""

from __future__ import annotations

import threading
import time

import pytest
from departures import NEVER, PAUSE, leaves, left_behind, send
from noticing import looked, notice, wait_for
from rank_threads import Start, together
from scratches import names, promotions_held, told
from servers.metadata import Aws, Azure, Gcp

from resume_core import Preempted, Preemption, SaveEvery
from resume_core.session import Session
from resume_core.state import Progress

pytestmark = pytest.mark.usefixtures("looks")


def begin(start, directory, *notices, save=NEVER, **arguments):
    preemption = arguments.pop("preemption", Preemption(notices=notices))
    return start(directory, save=save, preemption=preemption, **arguments)


def test_the_next_boundary_saves_and_the_process_ends(directory, start, serve, caplog):
    server = serve(Aws)
    run = begin(start, directory, f"aws={server.base}").train(2)
    looked(server)
    run.train(1)
    server.interrupt()
    notice(run.session._leaving._notices)
    assert leaves(run, in_window=True) == 143
    assert "AWS terminates this spot instance at" in told(caplog, "the run is saved at step 4")[0]
    again = start(directory, save=NEVER, preemption=Preemption(notices=None))
    assert again.restored.progress == Progress(step=4, batch=4, in_window=True)
    again.session.end()


def test_what_stands_at_the_start_lets_a_run_get_on_by_a_batch(directory, start, serve):
    server = serve(Gcp)
    server.values["preempted"] = "TRUE"
    for step in (1, 2, 3):  # a supervisor starts it again and again on the same machine
        run = begin(start, directory, f"gcp={server.base}")
        notice(run.session._leaving._notices)
        leaves(run)
        assert names(directory)[-1].endswith(f"-{step:09d}")


def test_what_stands_at_the_start_with_an_end_lets_a_run_train_until_shortly_before(directory, start, serve):
    server = serve(Aws)
    server.interrupt(in_s=600)
    run = begin(start, directory, f"aws={server.base}")
    leaving = run.session._leaving
    wait_for(lambda: leaving._notices.ahead is not None)
    run.train(20)
    leaving._save_s = lambda: 400.0  # twice that, and a margin, is kept
    assert leaves(run) == 143


def test_what_comes_late_and_is_hours_ahead_lets_a_run_go_on(directory, start, serve):
    server, now = serve(Azure), [0.0]
    run = begin(start, directory, f"azure={server.base}")
    leaving = run.session._leaving
    leaving._clock, leaving._looked_s = lambda: now[0], 0.0
    for now[0] in range(0, 20_000, 1000):
        run.train(1)
    server.announce("Reboot", "trainer_3", in_s=6000)
    wait_for(lambda: leaving._notices.ahead is not None)
    now[0] += 100
    run.train(1)
    now[0] += 3000  # twice what a batch has taken is more than what is left
    assert leaves(run) == 143


def test_a_rebalance_recommendation_saves_once_and_the_run_goes_on(directory, start, serve):
    server = serve(Aws)
    run = begin(start, directory, f"aws={server.base}").train(2)
    looked(server)
    server.rebalance = '{"noticeTime": "2026-11-30T08:22:00Z"}'
    wait_for(lambda: run.session._leaving._notices._is_early)
    run.train(3).session.end()
    assert [int(name[-9:]) for name in names(directory)] == [0, 3]


def test_with_an_end_too_near_for_the_directory_it_is_said(directory, near, start, serve, monkeypatch, caplog):
    server = serve(Azure)
    run = begin(start, directory, f"azure={server.base}", scratch=near).train(1)
    run.session.wait()
    looked(server)
    server.announce("Preempt", "trainer_3", in_s=0.0)
    notice(run.session._leaving._notices)
    with promotions_held(monkeypatch) as release:
        threading.Timer(0.4, release.set).start()
        leaves(run)
    assert "takes longer than the notice leaves time for" in caplog.text


def test_a_signal_goes_before_a_notice(directory, start, tmp_path, caplog):
    run = begin(start, directory, tmp_path / "leave").train(1)
    (tmp_path / "leave").touch()
    notice(run.session._leaving._notices)
    send()
    leaves(run)
    assert "SIGTERM: the run is saved" in caplog.text


def test_a_notice_before_a_long_pause_that_was_saved_ends_the_process_there(directory, start, tmp_path):
    run = begin(start, directory, preemption=Preemption(grace_s=0.05, notices=tmp_path / "leave")).train(1)
    with run.session.pause(PAUSE):
        time.sleep(0.1)
    run.session.boundary(Progress(step=1, batch=1), lambda: [PAUSE])
    (tmp_path / "leave").touch()
    notice(run.session._leaving._notices)
    with pytest.raises(Preempted) as left, run.session.pause(PAUSE):
        raise AssertionError("the pause began")
    run.session.end(left.value)


def test_nothing_is_asked_after_the_end_of_the_run(directory, start, serve):
    server = serve(Gcp)
    run = begin(start, directory, f"gcp={server.base}").train(1)
    looked(server)
    run.session.end()
    wait_for(lambda: not run.session._leaving._notices.is_watching)
    num = len(server.asked)
    time.sleep(0.1)
    assert len(server.asked) == num


def test_one_rank_of_a_machine_looks_and_all_leave_at_one_boundary(toy, tmp_path, monkeypatch):
    path, lock = tmp_path / "leave", threading.Lock()

    def work(ranks):
        with lock:  # the environment is of a process, and these ranks are threads
            monkeypatch.setenv("LOCAL_RANK", "10" if ranks.rank == 0 else "0")  # rank 1 is the first of its machine
            preemption = Preemption(signals=(), notices=path)
            run = Start.__new__(Start)
            run.toy = toy()
            run.toy.ranks = ranks
            run.session = Session(run.toy, tmp_path / "run", save=NEVER, preemption=preemption)
        run.restored = run.session.start(7)
        run.num = 0
        run.session.begin(run.progress)
        assert run.session._leaving._notices.is_watching == (ranks.rank == 1)
        run.train(3)
        path.touch()
        return left_behind(run, 100_000)

    found, _ = together(2, work)
    assert found[0] is not None
    assert found[0] == found[1]


def test_all_ranks_save_early_when_one_is_told(toy, tmp_path):
    def work(ranks):
        save = SaveEvery(steps=None, minutes=None)
        run = Start(toy(), tmp_path, ranks, save=save, preemption=Preemption(notices=None)).train(1)
        run.session._leaving._notices._is_early = ranks.rank == 1
        while not ranks.share("is it saved", len(names(tmp_path)) == 2) and run.num < 100_000:
            run.train(1, settle=False)
        run.session.end()
        return run.num

    found, _ = together(2, work)
    assert found[0] == found[1]
    assert len(names(tmp_path)) == 2
