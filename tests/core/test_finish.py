"""Ends, and several fits of one script, without any training framework."""

from __future__ import annotations

import dataclasses
import logging

import pytest
import torch

from resume_core import CheckpointNotFoundError, ConfigChangedError, Keep, SaveEvery, claims
from resume_core.checkpointer import Pending
from resume_core.errors import SaveFailedError
from resume_core.session import Session
from resume_core.state import Ending, Progress
from resume_core.storage import Lineage, open_store

RARE = {"save": SaveEvery(steps=100, minutes=None), "keep": Keep(last=1)}


def names(directory):
    lineage = Lineage(open_store(directory))
    return [ref.path.split("/")[1] for a in lineage.attempts() for ref in reversed(lineage.checkpoints(a.name))]


def finish(run, num_steps=0, cause="max_steps"):
    """Train to the end of a fit."""
    run.train(num_steps - 1, settle=True)
    run.toy.step()
    run.num += 1
    at = Progress(step=run.num, batch=run.num, is_last=True)
    run.session.boundary(at)
    run.toy.value *= 10  # as callbacks do that swap weights at the end
    run.session.finish(dataclasses.replace(at, is_last=False), Ending(cause, {"max_steps": run.num}))
    run.session.end()
    return run


class Over:
    """A start that gets no further than the restore."""

    def __init__(self, directory, toy, **arguments):
        self.toy, self.session = toy, Session(toy, directory, **arguments)
        self.restored = self.session.start(7)


@pytest.fixture
def limited(toy):
    def make(max_steps, **facts):
        made = toy(**facts)
        made.limits = {"max_steps": max_steps}
        return made

    return make


def test_the_last_boundary_and_the_end_are_saved_and_both_stay(directory, start, limited):
    finish(start(directory, limited(4), **RARE), 4)
    assert names(directory) == ["step-000000004", "step-000000004.2"]


def test_the_last_boundary_is_saved_inside_a_window_too(directory, start, limited):
    run = start(directory, limited(3), **RARE)
    run.train(2)
    run.session.boundary(Progress(step=3, batch=3, in_window=True, is_last=True))
    run.session.end()
    assert names(directory)[-1] == "step-000000003"


def test_a_save_in_flight_at_the_last_boundary_is_waited_for(directory, start, limited):
    run = start(directory, limited(2), save=SaveEvery(steps=1, minutes=None))
    run.train(1, settle=False)
    finish(run, 1)
    assert names(directory)[-2:] == ["step-000000002", "step-000000002.2"]


def test_a_finished_run_is_over_and_has_its_end_state(directory, start, limited):
    finish(start(directory, limited(4), **RARE), 4)
    before = names(directory)
    run = Over(directory, limited(4))
    assert run.session.is_over
    assert torch.equal(run.toy.value, torch.full((3,), 40.0))
    assert names(directory) == before
    assert len(Lineage(open_store(directory)).attempts()) == 1


def test_a_second_training_of_one_process_in_one_directory_is_warned_that_it_is_none(directory, start, limited, caplog):
    finish(start(directory, limited(2), **RARE), 2)
    again = Over(directory, limited(2))
    assert again.session.is_over
    (warned,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert "nothing to train: max_steps=2 was reached" in warned.getMessage()
    assert "needs a directory of its own" in warned.getMessage()
    caplog.clear()
    claims._claimed.clear()  # as in another process
    assert Over(directory, limited(2)).session.is_over
    assert not [record for record in caplog.records if record.levelno == logging.WARNING]


def test_a_limit_that_was_raised_goes_on_from_before_the_end(directory, start, limited):
    finish(start(directory, limited(4), **RARE), 4)
    run = start(directory, limited(6), **RARE)
    assert not run.session.is_over
    assert run.restored.progress.step == 4
    assert torch.equal(run.toy.value, torch.full((3,), 4.0))
    finish(run, 2)
    assert torch.equal(Over(directory, limited(6)).toy.value, torch.full((3,), 60.0))
    # the end that was passed over is no end any more, and goes with the next that is saved
    assert names(directory) == ["step-000000006", "step-000000006.2"]


def test_a_run_that_was_stopped_is_over_whatever_the_limits(directory, start, limited):
    finish(start(directory, limited(100), **RARE), 4, cause="stop")
    assert Over(directory, limited(200)).session.is_over


def test_a_limit_below_what_was_done_is_over(directory, start, limited, caplog):
    caplog.set_level("INFO", "exact_resume")
    start(directory, limited(100), save=SaveEvery(steps=1, minutes=None)).train(5).session.end()
    assert Over(directory, limited(4)).session.is_over
    assert any("max_steps=4 was reached" in r.getMessage() for r in caplog.records)
    assert not Over(directory, limited(5)).session.is_over  # what follows the last step is still due


def test_an_end_of_which_nothing_before_is_left_is_not_begun_anew(directory, start, limited):
    finish(start(directory, limited(4), **RARE), 4)
    store = open_store(directory)
    (attempt,) = Lineage(store).attempts()
    store.delete(f"{attempt.name}/step-000000004/manifest.json")
    with pytest.raises(CheckpointNotFoundError, match="end of a run"):
        start(directory, limited(6))


def test_a_failure_of_the_save_at_the_end_is_raised(directory, start, limited, monkeypatch):
    run = start(directory, limited(4), **RARE)
    write = Pending.write
    monkeypatch.setattr(
        Pending, "write", lambda self, *a, **k: fail() if self.header["finished"] else write(self, *a, **k)
    )

    def fail():
        raise OSError(28, "full")

    with pytest.raises(SaveFailedError, match="full"):
        finish(run, 4)


def test_fits_of_a_script_follow_one_another(directory, start, limited):
    first = finish(start(directory, limited(2), **RARE, fit=0), 2)
    second = start(directory, first.toy, **RARE, fit=1)
    assert second.restored is None
    key = second.toy.key
    assert key != first.session._beginning.key
    second.num = 2
    second.train(1).session.end()
    # started again: the first fit is over, the second goes on
    again = Over(directory, limited(2), fit=0)
    assert again.session.is_over
    assert torch.equal(again.toy.value, torch.full((3,), 20.0))
    found = start(directory, limited(9), fit=1)
    assert found.restored is not None
    assert found.toy.key == key


def test_the_end_of_each_fit_stays_with_keep_one(directory, start, limited):
    toy = limited(1)
    for fit in range(3):
        run = start(directory, toy, **RARE, fit=fit)
        run.num = fit
        toy.limits = {"max_steps": fit + 1}
        finish(run, 1)
    for fit in range(3):
        again = Over(directory, limited(fit + 1), fit=fit)
        assert again.session.is_over
        assert again.restored.progress.step == fit + 1
    assert names(directory) == ["step-000000001.2", "step-000000002.2", "step-000000003", "step-000000003.2"]


def test_a_fit_without_its_end_is_passed_over_with_a_warning(directory, start, limited, caplog):
    toy = limited(1)
    finish(start(directory, toy, **RARE, fit=0), 1)
    start(directory, toy, **RARE, fit=2).session.end()  # the one between had nothing to train
    again = Over(directory, limited(1), fit=1)
    assert again.session.is_over
    assert again.restored is None
    assert any("is not in" in r.getMessage() for r in caplog.records)


def test_a_changed_config_of_a_fit_is_compared_with_that_fit(directory, start, limited):
    finish(start(directory, limited(1), **RARE, fit=0), 1)
    start(directory, limited(1, batch_size=8), **RARE, fit=1).session.end()  # other data is not a change
    with pytest.raises(ConfigChangedError, match="batch_size"):
        Over(directory, limited(1), fit=1)
    assert Over(directory, limited(1), fit=0).session.is_over


def test_a_named_checkpoint_of_a_later_fit_brings_the_ends_of_those_before_with_it(directory, start, limited):
    toy = limited(1)
    finish(start(directory, toy, **RARE, fit=0), 1)
    start(directory, toy, **RARE, fit=1).session.end()
    name = Lineage(open_store(directory)).attempts()[-1].name
    first = Over(directory, limited(1), fit=0, resume=name)
    assert first.session.is_over
    assert first.restored.ref.name == "step-000000001.2"
    assert Over(directory, limited(5), fit=1, resume=name).restored is not None


def test_never_begins_the_first_fit_anew_and_the_second_after_it(directory, start, limited):
    finish(start(directory, limited(1), **RARE, fit=0), 1)
    finish(start(directory, limited(1), **RARE, fit=0, resume="never"), 1)
    start(directory, limited(2), **RARE, fit=1, resume="never").session.end()
    attempts = Lineage(open_store(directory)).attempts()
    assert [a.parent for a in attempts] == [None, None, attempts[1].name]
