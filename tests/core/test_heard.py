"""When an attempt that has said nothing at its end was heard of last."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest
from pasts import EVERY_2, LOG, SEEN, TOLD, lineage, stop

from resume_core.goodput import account
from resume_core.heard import read_heard
from resume_core.policy import Keep
from resume_core.storage import Attempt, put_history, read_history


def written_last(directory, ago_s, batch=1, **fields):
    """The history of the newest attempt as it was so many seconds ago, after so many batches and no save."""
    found = lineage(directory)
    then = (datetime.now(timezone.utc) - timedelta(seconds=ago_s)).isoformat(timespec="milliseconds")
    told = {
        **TOLD,
        "started": then,
        "first_batch_s": 0.5,
        "seen": {**SEEN, "time": then, "step": batch, "batch": batch},
        **fields,
    }
    put_history(found.store, found.newest().name, {**told, "attempt": found.newest().name})
    return found, found.newest().name


def test_a_killed_attempt_was_heard_of_when_it_saved_last(directory, start):
    run = start(directory, save=EVERY_2)
    run.session._history._begun_s = run.session._history._start_s - 50
    stop(run.train(5), killed=True)
    found, attempt = written_last(directory, 100)
    heard, told = read_heard(found, attempt, found.attempts()), read_history(found.store, attempt)
    (newest, *_) = found.checkpoints(attempt)
    header = found.read_manifest(newest).header
    assert heard.seen == header["time"] > told.seen
    assert heard.up_s == pytest.approx(100, abs=3)
    assert heard.trained_s == header["trained_s"] > 1.0
    assert heard.at == {"step": 4, "batch": 4, "epoch": 0}
    assert [(save["path"], save["batch"]) for save in heard.saves] == [(newest.path, 4)]
    sums = account(found, attempt, LOG)
    assert sums.wall_s == pytest.approx(100, abs=3)
    assert (sums.shares[0].kept_s, sums.shares[0].lost_batches) == (header["trained_s"], 0)


def test_and_so_it_stays_when_that_checkpoint_is_deleted(directory, start):
    stop(start(directory, save=EVERY_2).train(5), killed=True)
    found, attempt = written_last(directory, 100)
    heard, sums = read_heard(found, attempt, found.attempts()), account(found, attempt, LOG)
    run = start(directory, save=EVERY_2, keep=Keep(last=1)).train(4)
    run.session.end()
    assert found.checkpoints(attempt) == []
    still = read_heard(found, attempt, found.attempts())
    assert still == replace(heard, saves=still.saves)
    now = account(found, run.session._attempt.name, LOG).shares[0]
    assert (now.kept_s, now.lost_batches) == (sums.shares[0].kept_s, sums.shares[0].lost_batches)


def test_one_that_has_said_how_it_ended_has_said_when(directory, start):
    stop(start(directory, save=EVERY_2).train(5))
    found, attempt = written_last(directory, 100, cause="failed")
    assert read_heard(found, attempt, found.attempts()) == read_history(found.store, attempt)


@pytest.mark.parametrize("what", ["newer", "header"])
def test_a_checkpoint_that_tells_nothing_newer_changes_nothing(directory, start, what, monkeypatch):
    run = start(directory, save=EVERY_2)
    if what == "header":
        plain = run.session._header
        monkeypatch.setattr(run.session, "_header", lambda *each: plain(*each) | {"time": "then"})
    stop(run.train(5), killed=True)
    found, attempt = written_last(directory, -100, batch=9) if what == "newer" else written_last(directory, 100)
    assert read_heard(found, attempt, found.attempts()) == read_history(found.store, attempt)


def test_a_checkpoint_of_a_later_batch_is_newer_whatever_the_clock_says(directory, start):
    """Times in manifests were whole seconds once: one that was taken behind the history seemed to be older."""
    stop(start(directory, save=EVERY_2).train(5), killed=True)
    found, attempt = written_last(directory, -0.9)
    heard, told = read_heard(found, attempt, found.attempts()), read_history(found.store, attempt)
    assert (heard.at["step"], heard.at["batch"]) == (4, 4)
    assert heard.seen == told.seen
    assert heard.up_s >= heard.trained_s
    assert [save["batch"] for save in heard.saves] == [4]


def test_what_many_killed_attempts_have_left_is_read_once_for_all(directory, start, monkeypatch):
    """Each attempt looked through the claims of all others: 400 of them took `ls` five seconds."""
    stop(start(directory, save=EVERY_2).train(5), killed=True)
    found, first = written_last(directory, 100)
    for name in [found.claim(parent=first).name for _ in range(30)]:
        written = {"attempt": name, "first_batch_s": 0.5, "seen": SEEN}
        put_history(found.store, name, {**TOLD, **written})
    claims, parse = [], Attempt.from_bytes

    def counting(data, *, path):
        claims.append(path)
        return parse(data, path=path)

    monkeypatch.setattr(Attempt, "from_bytes", counting)
    assert len(account(found.glance(), first, LOG).shares) == 31
    assert len(claims) < 4 * 31
