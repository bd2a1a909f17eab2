"""The decisions of a run's life, without any training framework."""

from __future__ import annotations

import threading
import time

import pytest
import torch

from resume_core import Changes, ConfigChangedError, Keep, SaveEvery, SupersededError
from resume_core.candidates import resume_mode
from resume_core.checkpointer import Pending
from resume_core.errors import CheckpointNotFoundError, SaveFailedError, UnsupportedStateError
from resume_core.schedule import RETRY_S
from resume_core.session import Session
from resume_core.state import Fact, Progress
from resume_core.storage import Lineage, open_store

EVERY = SaveEvery(steps=1, minutes=None)


def names(directory):
    lineage = Lineage(open_store(directory))
    return [ref.name for attempt in lineage.attempts() for ref in lineage.checkpoints(attempt.name)]


def test_a_run_goes_on_where_the_newest_checkpoint_was_taken(directory, start):
    first = start(directory, save=EVERY).train(5)
    first.session.end()
    second = start(directory, save=EVERY)
    assert second.restored.progress.step == 5
    assert torch.equal(second.toy.value, torch.full((3,), 5.0))
    assert second.toy.applied.training["moments"][1] == {1: float("inf")}
    assert second.toy.key == first.toy.key


def test_a_new_run_saves_once_before_its_first_batch_and_a_resumed_one_does_not(directory, start):
    first = start(directory, save=SaveEvery(steps=100))
    first.session.end()
    assert names(directory) == ["step-000000000"]
    second = start(directory, save=SaveEvery(steps=100))
    second.session.end()
    assert names(directory) == ["step-000000000"]
    assert len(Lineage(open_store(directory)).attempts()) == 2


def test_the_save_at_the_start_can_be_left_out(directory, start):
    start(directory, save=SaveEvery(steps=100, at_start=False)).session.end()
    assert names(directory) == []


def test_the_key_follows_from_the_seed_and_draws_nothing(directory, start, tmp_path):
    before = torch.get_rng_state()
    one, two = start(directory), start(str(tmp_path / "other"))
    assert one.toy.key == two.toy.key
    assert torch.equal(torch.get_rng_state(), before)
    one.session.end()
    two.session.end()


def test_without_a_seed_each_run_has_a_key_of_its_own(toy, tmp_path):
    keys = set()
    for name in "ab":
        made = toy()
        Session(made, tmp_path / name).start(None)
        keys.add(made.key)
    assert len(keys) == 2


def test_only_the_last_checkpoints_stay(directory, start):
    run = start(directory, save=EVERY, keep=Keep(last=2)).train(6)
    run.session.end()
    assert names(directory) == ["step-000000006", "step-000000005"]


def test_a_save_that_is_due_while_one_is_in_flight_is_taken_at_the_first_boundary_that_is_free(
    directory, start, monkeypatch
):
    gate = threading.Event()
    write = Pending.write
    monkeypatch.setattr(Pending, "write", lambda self, *a, **k: gate.wait() and write(self, *a, **k))
    run = start(directory, save=SaveEvery(steps=2, minutes=None))
    run.train(3, settle=False)  # due at step 2, but the save at the start is still in flight
    gate.set()
    run.session._saves.writer.wait()
    run.train(1)
    run.session.end()
    assert names(directory) == ["step-000000004", "step-000000000"]


def test_nothing_is_saved_inside_an_accumulation_window(directory, start):
    run = start(directory, save=EVERY).train(3, in_window=True)
    run.train(1)
    run.session.end()
    assert names(directory) == ["step-000000004", "step-000000000"]


def test_a_snapshot_is_what_the_state_was_when_it_was_taken(directory, start, monkeypatch):
    gate = threading.Event()
    write = Pending.write
    run = start(directory, save=SaveEvery(steps=3, minutes=None)).train(2)
    run.session._saves.writer.wait()
    monkeypatch.setattr(Pending, "write", lambda self, *a, **k: gate.wait() and write(self, *a, **k))
    run.train(1)
    run.train(2, settle=False)  # changes the live tensors while the save waits
    gate.set()
    run.session.end()
    assert torch.equal(start(directory).toy.value, torch.full((3,), 3.0))


def test_a_changed_config_stops_before_anything_is_applied(directory, start, toy):
    start(directory).session.end()
    other = toy(batch_size=8)
    with pytest.raises(ConfigChangedError, match="batch_size"):
        start(directory, other)
    assert other.applied is None
    assert start(directory, other, changes=Changes(allow=("batch_size",))).restored is not None


def test_what_was_accepted_is_what_the_next_attempt_is_compared_with(directory, start, toy):
    start(directory).session.end()
    changed = start(directory, toy(batch_size=8), changes=Changes(allow=("batch_size",)), save=EVERY).train(1)
    changed.session.end()
    assert start(directory, toy(batch_size=8)).restored.progress.step == 1


def test_an_older_attempt_is_stopped_at_its_next_commit(directory, start):
    old = start(directory, save=EVERY).train(2)
    old.session._saves.writer.wait()
    new = start(directory, save=EVERY).train(1)
    with pytest.raises(SupersededError, match=r"attempt-0002.*attempt-0001"):
        old.train(3)
    new.train(1)
    new.session.end()
    # its save at step 2 was in flight when it was waited for, so the newer one went on from there
    assert start(directory).restored.progress.step == new.num


def test_state_that_cannot_be_saved_is_refused_at_the_start(directory, toy):
    odd = toy()
    odd.extra = object()
    session = Session(odd, directory)
    session.start(7)
    with pytest.raises(UnsupportedStateError, match=r"training\.extra"):
        session.begin(Progress())


def test_state_that_stops_being_savable_is_a_failed_save_and_three_in_a_row_end_training(directory, start):
    run = start(directory, save=EVERY).train(3)
    run.toy.extra = object()
    run.train(2)
    with pytest.raises(SaveFailedError, match=r"training\.extra"):
        run.train(1)


def test_a_failed_save_is_tried_again_after_a_while_and_not_at_once(directory, start, monkeypatch, caplog):
    run = start(directory, save=SaveEvery(steps=100, minutes=1)).train(2)
    now_s = time.monotonic()
    monkeypatch.setattr(run.session._boundaries._schedule, "_clock", lambda: now_s)
    with monkeypatch.context() as full:
        full.setattr(Pending, "write", lambda *a, **k: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        now_s += 60
        run.train(5)
    now_s += RETRY_S - 1
    run.train(1)
    now_s += 1
    run.train(1)
    run.session.end()
    assert names(directory) == ["step-000000009", "step-000000000"]
    assert len([r for r in caplog.records if "failed" in r.getMessage()]) == 1


def test_a_name_that_goes_back_is_said_to_do_so(directory, start, caplog):
    start(directory, save=EVERY).train(3).session.end()
    start(directory, resume="attempt-0001/step-000000002").session.end()
    assert any("goes back" in r.getMessage() for r in caplog.records)


def test_an_error_that_ends_training_is_not_hidden_by_a_failed_save(directory, start, monkeypatch):
    run = start(directory, save=EVERY).train(1)
    run.session._saves.writer.wait()
    monkeypatch.setattr(Pending, "write", lambda *a, **k: (_ for _ in ()).throw(OSError(28, "full")))
    run.train(1)
    run.session.end(ValueError("the user's"))  # does not raise


def test_wait_raises_what_went_wrong(directory, start, monkeypatch):
    run = start(directory, save=EVERY).train(1)
    run.session._saves.writer.wait()
    monkeypatch.setattr(Pending, "write", lambda *a, **k: (_ for _ in ()).throw(OSError(28, "full")))
    run.train(1)
    with pytest.raises(SaveFailedError, match="full") as failed:
        run.session.wait()
    assert isinstance(failed.value.__cause__, OSError)


@pytest.mark.parametrize("mode", ["auto", "must", "never", "attempt-0001/step-000000002"])
def test_the_environment_wins_over_the_argument(mode, monkeypatch):
    monkeypatch.setenv("EXACT_RESUME", mode)
    assert resume_mode("auto") == mode


@pytest.mark.parametrize("word", ["OFF", "Must", "NEVER"])
def test_the_words_may_be_written_in_capitals(word, monkeypatch):
    monkeypatch.setenv("EXACT_RESUME", word)
    assert resume_mode("auto") == word.lower()


def test_a_name_that_allows_nothing_is_said(directory, start, caplog):
    start(directory).session.end()
    start(directory, changes=Changes(allow=("sede", "seed"))).session.end()
    said = [r.getMessage() for r in caplog.records if "no run has" in r.getMessage()]
    assert len(said) == 1
    assert "'sede'" in said[0]


def test_a_new_run_says_that_it_is_one(directory, start, caplog):
    caplog.set_level("INFO", "exact_resume")
    start(directory).session.end()
    assert any("a new run: attempt-0001" in r.getMessage() for r in caplog.records)


def test_an_empty_resume_is_a_value_error(monkeypatch):
    monkeypatch.delenv("EXACT_RESUME", raising=False)
    with pytest.raises(ValueError, match="resume"):
        resume_mode("")


def test_threads_are_put_back_to_what_the_run_computed_with(directory, start, toy):
    def with_threads(count):
        made = toy()
        made.describe = lambda: {"environment.threads": Fact(count, "info")}
        return made

    current = torch.get_num_threads()
    try:
        start(directory, with_threads(1)).session.end()
        torch.set_num_threads(2)
        start(directory, with_threads(2)).session.end()
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(current)


def test_a_checkpoint_that_the_environment_names_is_said_to_be_its(directory, start, monkeypatch):
    start(directory).train(1).session.end()
    monkeypatch.setenv("EXACT_RESUME", "attempt-0007")
    with pytest.raises(CheckpointNotFoundError, match=r'^EXACT_RESUME="[^"]+": there is no checkpoint'):
        start(directory)
    monkeypatch.setenv("EXACT_RESUME", "atuo")
    with pytest.raises(ValueError, match=r'EXACT_RESUME takes auto, must, never, off .*Did you mean "auto"'):
        start(directory)


def test_a_message_says_where_what_it_speaks_of_was_asked_for(directory, start, monkeypatch, caplog):
    start(directory, save=EVERY).train(2).session.end()
    start(directory, save=EVERY, resume="step 0").train(2).session.end()
    monkeypatch.setenv("EXACT_RESUME", "attempt-1/step 0")
    start(directory).session.end()
    said = [r.getMessage().partition(" goes back to ")[0] for r in caplog.records if "goes back" in r.getMessage()]
    assert said == ['resume="step 0"', 'EXACT_RESUME="attempt-1/step 0"']
    monkeypatch.setenv("EXACT_RESUME", "must")
    with pytest.raises(CheckpointNotFoundError, match=r'^EXACT_RESUME="must", .* the run with EXACT_RESUME="auto"'):
        start(f"{directory}-empty")


def test_a_misspelt_name_of_a_change_is_told_from_the_first_start_on(directory, start, toy, caplog):
    start(directory, changes=Changes(allow=("batch_sise", "seed")))
    (said,) = [record.getMessage() for record in caplog.records if "allow" in record.getMessage()]
    assert said == "Changes(allow=...) names what no run has: 'batch_sise' (did you mean 'batch_size'?)"
    start(directory).train(1).session.end()
    with pytest.raises(ConfigChangedError, match=r"'sed' \(did you mean 'seed'\?\)"):
        start(directory, toy(seed=8), changes=Changes(allow=("sed",)))
