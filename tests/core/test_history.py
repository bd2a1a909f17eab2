"""What the attempts of a run tell of themselves, and what that adds up to."""

from __future__ import annotations

import gc
import itertools
import json
import logging
import shutil
import subprocess
import sys
import threading
import time
import weakref
from datetime import datetime

import pytest
from pasts import EVERY_2, LOG, SEEN, TOLD, lineage, newest, stop
from scratches import killed_before_promotion, promotions_fail

from resume_core import errors
from resume_core.checkpointer import Pending
from resume_core.goodput import account
from resume_core.history import History, _line
from resume_core.policy import Preemption, SaveEvery
from resume_core.session import Session
from resume_core.state import Ending, Progress
from resume_core.storage import put_history, seal


class Unspeakable(Exception):
    def __str__(self):
        raise ValueError("no text")


def test_an_attempt_tells_when_it_ran_how_far_it_came_and_what_its_saves_took(directory, start):
    run = start(directory, save=EVERY_2).train(5)
    run.session.finish(Progress(step=5, batch=5, is_last=True), Ending("max_steps", {"max_steps": 5}))
    run.session.end()
    told = newest(directory)
    assert (told.cause, told.resumed) == ("finished", None)
    assert told.at == {"step": 5, "batch": 5, "epoch": 0}
    assert told.host
    assert 0 < told.trained_s <= told.up_s
    assert told.first_batch_s > 0
    up_s = (datetime.fromisoformat(told.seen) - datetime.fromisoformat(told.started)).total_seconds()
    assert up_s == pytest.approx(told.up_s, abs=1)
    assert [(save["step"], save["reason"], save["end"]) for save in told.saves] == [
        *((0, "start", "durable"), (2, "schedule", "durable"), (4, "schedule", "durable"), (5, "end", "durable"))
    ]
    for save in told.saves:
        assert min(save[name] for name in ("blocked_s", "stage_s", "write_s", "commit_s", "durable_s", "bytes")) > 0
        assert save["stage_s"] <= save["blocked_s"]
        assert save["durable_s"] >= save["write_s"]


def test_the_phases_of_a_promotion_are_told(tmp_path, start):
    run = start(str(tmp_path / "run"), scratch=str(tmp_path / "scratch"), save=EVERY_2)
    run.train(4)
    run.session.wait()
    run.session.end()
    saves = [save for save in newest(str(tmp_path / "run")).saves if save.get("end") == "durable"]
    assert saves
    assert all(save["promote_s"] > 0 and save["write_s"] > 0 for save in saves)


@pytest.mark.parametrize(
    ("error", "cause", "why"),
    [
        (RuntimeError("CUDA out of memory\nlong"), "failed", "RuntimeError: CUDA out of memory"),
        (
            RuntimeError("cannot reach s3://me:pass@bucket token=abcdef"),
            "failed",
            "RuntimeError: cannot reach s3://***@",
        ),
        (Unspeakable(), "failed", "Unspeakable:"),
        (KeyboardInterrupt(), "stopped", "KeyboardInterrupt"),
        (SystemExit("no login with token=abcdef" + 999 * " so"), "stopped", "no login with token=*** so"),
        (errors.SupersededError("newer"), "superseded", None),
        (errors.Preempted(143), "preempted", None),
    ],
)
def test_what_ended_an_attempt(directory, error, cause, why, start):
    stop(start(directory, save=EVERY_2).train(3), error)
    told = newest(directory)
    assert told.cause == cause
    assert told.why == why or told.why.startswith(why)
    assert "pass" not in str(told.why)
    assert "abcdef" not in str(told.why)
    assert len(told.why or "") <= 300


def test_a_run_whose_last_save_fails_has_not_finished(directory, start, monkeypatch):
    def refuse(*_, **__):
        raise OSError(28, "No space left on device")

    run = start(directory, save=EVERY_2).train(3)
    run.session.wait()
    monkeypatch.setattr(Pending, "write", refuse)
    run.session.finish(Progress(step=3, batch=3, is_last=True), Ending("max_steps", {"max_steps": 3}))
    with pytest.raises(errors.SaveFailedError):
        run.session.end()
    told = newest(directory)
    assert (told.cause, told.why[:16]) == ("failed", "SaveFailedError:")


def test_a_run_that_leaves_says_why(directory, start):
    run = start(directory, save=SaveEvery(minutes=None), preemption=Preemption(max_hours=1e-9))
    with pytest.raises(errors.Preempted) as caught:
        run.train(1)
    run.session.end(caught.value)
    told = newest(directory)
    assert told.cause == "preempted"
    assert told.why == "Preemption(max_hours=1e-09)"
    assert account(lineage(directory), told.attempt, LOG).interruptions == 0  # nothing has failed


def test_an_attempt_that_only_brings_the_end_state_into_the_directory_stands_there(
    directory, near, start, toy, monkeypatch
):
    run = start(directory, scratch=near, save=EVERY_2).train(2)
    run.session.wait()
    with monkeypatch.context() as patch:
        promotions_fail(patch)
        run.session.finish(Progress(step=2, batch=2, is_last=True), Ending("max_steps", {"max_steps": 2}))
        with pytest.raises(errors.SaveFailedError):
            run.session.end()
    again = toy()
    again.limits = {"max_steps": 2}
    session = Session(again, directory, scratch=near)
    session.start(7)
    assert session.is_over
    session.end()
    told = newest(directory)
    assert (told.cause, told.at["step"], told.resumed["step"], told.trained_s) == ("finished", 2, 2, 0.0)


def test_the_work_lost_by_a_kill_and_the_goodput(directory, start):
    stop(start(directory, save=EVERY_2).train(5), killed=True)
    second = start(directory, save=EVERY_2)
    assert second.num == 4
    stop(second.train(3), RuntimeError("no"))
    third = start(directory, save=EVERY_2).train(2)
    third.session.finish(Progress(step=8, batch=8, is_last=True), Ending("max_steps", {"max_steps": 8}))
    third.session.end()
    found = account(lineage(directory), lineage(directory).newest().name, LOG)
    assert [share.lost_batches for share in found.shares] == [1, 1, 0]
    assert [share.past.cause for share in found.shares] == [None, "failed", "finished"]
    assert [share.past.resumed and share.past.resumed["step"] for share in found.shares] == [None, 4, 6]
    assert found.interruptions == 1  # the kill: an error of the script is nothing that a machine does
    assert found.mtbf_s == pytest.approx(sum(share.past.up_s for share in found.shares))
    assert all(0 < share.kept_s <= share.past.trained_s for share in found.shares)
    assert 0 < found.lost_s < found.wall_s
    assert found.goodput == pytest.approx(found.kept_s / found.wall_s)


def test_what_a_history_lacks_stands_in_the_manifest(directory, start):
    run = start(directory, save=EVERY_2).train(5)
    run.session.wait()
    stop(run, killed=True)
    start(directory, save=EVERY_2).session.end(RuntimeError())
    found = lineage(directory)
    first, second = found.attempts()
    fields = json.loads(found.store.read(f"{first.name}/history.json"))
    put_history(
        found.store,
        first.name,
        {k: v for k, v in fields.items() if k not in ("digest", "format", "kind")} | {"saves": []},
    )
    share = account(found, second.name, LOG).shares[0]
    assert share.kept_s > 0
    assert share.lost_batches == 1


@pytest.mark.parametrize(
    "data",
    [
        b"{}",
        seal("history", {"seen": {}}),
        seal("history", {**TOLD, "started": "2026-99-01"}),
        seal("history", {**TOLD, "started": "2026-11-30T11:00:00"}),
        seal("history", {**TOLD, "saves": [1]}),
        seal("history", {**TOLD, "saves": [{"path": "a", "trained_s": 1.0}]}),
        seal("history", {**TOLD, "resumed": {}}),
        seal("history", {**TOLD, "seen": {**SEEN, "up_s": -1.0}}),
    ],
)
def test_a_history_that_was_altered_is_named_and_left_out(data, directory, caplog, start):
    stop(start(directory, save=EVERY_2).train(3), RuntimeError())
    stop(start(directory, save=EVERY_2).train(3), RuntimeError())
    found = lineage(directory)
    first, second = found.attempts()
    found.store.put(f"{first.name}/history.json", data)
    assert len(account(found, second.name, LOG).shares) == 1
    assert f"the history of {first.name} is left out" in caplog.text


def test_attempts_of_another_run_in_the_directory_do_not_count(directory, start):
    stop(start(directory, save=EVERY_2).train(3), RuntimeError())
    stop(start(directory, save=EVERY_2, resume="never").train(3), RuntimeError())
    found = lineage(directory)
    assert len(account(found, found.newest().name, LOG).shares) == 1


def test_the_cadence_counts_the_interruptions_that_the_run_has_had(directory, caplog, start):
    caplog.set_level(logging.INFO)
    for _ in range(2):
        stop(start(directory, save=EVERY_2).train(3), killed=True)
    run = start(directory, save=SaveEvery(steps=2, minutes=None, mtbf_hours=10)).train(4)
    run.session.end()
    assert "2 interruptions in 0.00 h and SaveEvery(mtbf_hours=10)" in caplog.text
    assert "the time between interruptions is 3.33 h" in caplog.text


@pytest.mark.parametrize(
    "error", [RuntimeError("shapes"), errors.DivergedError("nan"), KeyboardInterrupt(), SystemExit(1)]
)
def test_what_the_user_does_to_a_run_is_no_interruption(directory, caplog, start, error):
    caplog.set_level(logging.INFO)
    stop(start(directory, save=EVERY_2).train(3), error)
    stop(start(directory, save=EVERY_2).train(3), killed=True)
    run = start(directory, save=SaveEvery(steps=2, minutes=None, mtbf_hours=10)).train(4)
    found = account(lineage(directory), run.session._attempt.name, LOG)
    assert found.interruptions == 1
    assert found.mtbf_s == pytest.approx(found.up_s)
    run.session.end()
    assert "1 interruption in 0.00 h and SaveEvery(mtbf_hours=10)" in caplog.text


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), TypeError("no strict JSON")])
def test_a_history_that_cannot_be_written_costs_no_training(tmp_path, monkeypatch, start, error):
    def refuse(*_):
        raise error

    monkeypatch.setattr("resume_core.history.put_history", refuse)
    run = start(str(tmp_path / "run"), save=EVERY_2).train(4)
    run.session.end()
    assert start(str(tmp_path / "run"), save=EVERY_2).num == 4
    assert not list(tmp_path.rglob("history.json"))


def test_a_slow_store_is_not_waited_for(tmp_path, monkeypatch):
    release, puts = threading.Event(), []

    def slow(*_):
        puts.append(1)
        release.wait(60)

    monkeypatch.setattr("resume_core.history.put_history", slow)
    monkeypatch.setattr("resume_core.history._LAST_WORD_S", 0.01)
    history = History(LOG, clock=iter(range(0, 100_000, 100)).__next__)
    history.open(None, type("Attempt", (), {"name": "attempt-0001-aaaa"}))
    history.begin(Progress(), resumed=False)
    for step in range(5):
        history.at(Progress(step=step))
    assert puts == [1]  # one at a time
    history.close(None)
    release.set()


def test_without_a_thread_training_does_not_write_it_itself(monkeypatch):
    def refuse(thread):
        raise RuntimeError("can't start new thread")

    puts = []
    monkeypatch.setattr("resume_core.history.put_history", lambda *_: puts.append(1))
    monkeypatch.setattr(threading.Thread, "start", refuse)
    history = History(LOG)
    history.open(None, type("Attempt", (), {"name": "attempt-0001-aaaa"}))
    history.begin(Progress(), resumed=False)
    history.at(Progress(step=1))
    assert puts == []
    history.close(None)  # the interpreter may be about to end, which makes no threads
    assert puts == [1]


def test_frequent_saves_are_told_of_together(tmp_path, start, monkeypatch):
    monkeypatch.setattr("resume_core.history._SOON_S", 3600.0)
    run = start(str(tmp_path / "run"), save=SaveEvery(steps=1, minutes=None))
    puts = []
    put = run.session._history._put
    run.session._history._put = lambda fields: (puts.append(1), put(fields))
    run.train(20)
    run.session.end()
    assert len(puts) <= 2  # at the first boundary, if it was not written before, and at the end


def test_only_the_newest_saves_are_kept_one_by_one(monkeypatch):
    monkeypatch.setattr("resume_core.history._MAX_SAVES", 3)
    history = History(LOG)
    history.begin(Progress(), resumed=False)
    for step in range(5):
        history.took(f"step-{step}", Progress(step=step), "schedule", 0.5)
    fields = history._fields()
    assert [save["step"] for save in fields["saves"]] == [2, 3, 4]
    assert fields["earlier"] == {"saves": 2, "blocked_s": 1.0}


SCRIPT = """
import logging, sys
from resume_core.history import History, _line
from resume_core.state import Progress
from resume_core.storage import Lineage, open_store
lineage = Lineage(open_store({directory!r}))
history = History(logging.getLogger())
history.open(lineage.store, lineage.claim())
history.begin(Progress(), resumed=False)
history.at(Progress(step=3, batch=3))
{end}
"""


LEFT = """
def epochs():
    try:
        yield 1
        yield 2
    except BaseException as error:
        history.close(error)
        raise
for _ in epochs():
    {how}
"""


DELETED = """
import shutil
history._writing.join()
shutil.rmtree({directory!r})
"""


def test_a_directory_that_its_user_has_deleted_is_not_made_again_for_a_report(tmp_path):
    directory = tmp_path / "run"
    code = SCRIPT.format(directory=str(directory), end=DELETED.format(directory=str(directory)))
    subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert not directory.exists()


def test_one_that_is_deleted_in_the_middle_of_a_run_has_a_report_again(tmp_path, start):
    directory = str(tmp_path / "run")
    run = start(directory, save=EVERY_2).train(1)
    run.session.wait()
    run.session._history._writing.join()
    shutil.rmtree(directory)
    run.session._history._write()
    run.session._history._writing.join()
    assert not (tmp_path / "run").exists()
    run.train(1).session.end()
    assert newest(directory).at["step"] == 2


def test_a_run_whose_end_nobody_tells_us_of_keeps_no_model_in_memory(directory, start):
    run = start(directory, save=EVERY_2).train(3)
    run.session.wait()
    framework, history = weakref.ref(run.toy), run.session._history
    del run
    gc.collect()
    assert framework() is None
    history.close(None)


def test_what_was_adopted_counts_as_no_training_of_the_attempt_that_lost_its_own(directory, near, start, monkeypatch):
    killed_before_promotion(directory, near, start, monkeypatch)
    second = start(directory, scratch=near, save=SaveEvery(steps=99, minutes=None))
    second.session.wait()
    time.sleep(0.02)  # longer than the first had trained when it saved, in case that is taken for it
    stop(second.train(2), killed=True)
    third = start(directory, scratch=near, save=EVERY_2)
    third.session.end(RuntimeError())
    assert third.num == 3
    share = account(lineage(directory), third.session._attempt.name, LOG).shares[1]
    assert (share.kept_s, share.lost_batches) == (0.0, 2)
    assert share.lost_s == share.past.trained_s > 0


def test_a_save_in_the_directory_counts_where_no_boundary_came_that_tells_of_its_end(directory, start):
    run = start(directory, save=EVERY_2).train(2)
    run.session._saves.wait()
    stop(run, killed=True)
    attempt = newest(directory).attempt
    (share,) = account(lineage(directory), attempt, LOG).shares
    assert share.lost_batches == 0
    assert share.kept_s > 0


@pytest.mark.parametrize(
    ("end", "cause", "why"),
    [
        ("", "stopped", "the script has ended"),
        ("raise ValueError('a bug')", "failed", "ValueError: a bug"),
        (LEFT.format(how="break"), "stopped", "GeneratorExit"),
        (LEFT.format(how="raise ValueError('a bug')"), "failed", "ValueError: a bug"),
        (LEFT.format(how="raise KeyboardInterrupt"), "stopped", "KeyboardInterrupt"),
    ],
)
def test_a_script_whose_end_nobody_tells_us_of(tmp_path, end, cause, why):
    directory = str(tmp_path / "run")
    code = SCRIPT.format(directory=directory, end=end)
    subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    told = newest(directory)
    assert (told.cause, told.why, told.at["batch"]) == (cause, why, 3)


def test_the_names_of_the_file_are_ours(tmp_path, start):
    directory = tmp_path / "run"
    stop(start(str(directory), save=EVERY_2).train(1), killed=True)
    (first,) = directory.glob("attempt-*")
    left = first / ".history.json.0123abcd.tmp"
    left.write_bytes(b"half")
    run = start(str(directory), save=EVERY_2).train(1)
    run.session.end()
    assert not left.exists()  # cleaned at the next start
    assert (first / "history.json").exists()


def test_a_young_attempt_writes_more_often():
    now, written = [0.0], []
    history = History(LOG, clock=lambda: now[0])
    history._put = lambda fields: written.append(now[0])
    for second in range(1, 2000):
        now[0] = float(second)
        history.at(Progress(step=second, batch=second))
        history._writing.join()
    gaps = [after - before for before, after in itertools.pairwise(written)]
    assert gaps[:5] == [5.0] * 5
    assert max(gaps) == 60.0
    assert all(gap <= max(5, before * 0.1 + 1) for gap, before in zip(gaps, written, strict=False))
    assert len(written) < 70


def losses_told(values):
    history = History(LOG)
    for step, value in enumerate(values, start=1):
        history.loss(step, value)
    return history._losses


@pytest.mark.parametrize("num_steps", [50, 3000])
def test_the_step_that_lost_the_loss_is_told_of_however_many_are_thinned(num_steps):
    told = losses_told([1.0] * 20 + [float("nan")] * (num_steps - 20))
    assert next(step for step, value in told if value == "nan") == 21


def test_a_loss_that_came_back_between_two_that_are_kept_is_told_of_too():
    told = losses_told([1.0] * 2002 + [float("inf"), 1.0])  # as a scaler of gradients has it, near the end
    assert told[-2:] == [[2003, "inf"], [2004, 1.0]]


def test_a_long_reason_ends_at_a_word():
    told = _line(ValueError("a reason " * 60), "ValueError: ")
    assert len(told) <= 300
    assert told.startswith("ValueError: a reason")
    assert told.endswith(("reason ...", " a ..."))
    assert _line(ValueError("short")) == "short"
