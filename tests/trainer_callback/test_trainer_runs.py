"""Kills, ends, several calls of train, changed configurations: what a run with a Trainer goes through."""

from __future__ import annotations

from pathlib import Path

import harness
import pytest
from accelerate_runs import checkpoints, fails, start, train
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from trainer_runs import arguments, new_job

from resume_core.storage import Lineage, open_store, read_history

CONSTANT = {"lr_scheduler_type": "constant"}


def killed(job, batch, *, saved=None, resume_at=None, **changes):
    """The next start of a job that was killed as it trained on a batch, the save before it being there.

    ``saved`` says what the save counts, where that is not all that was trained on; ``resume_at`` from which batch on
    it goes on, where that is not the last save.
    """
    saved = batch if saved is None else saved
    first = job.but(name="first", directory=f"{job.root}/killed", pause_at=batch)
    (process,) = start(first)
    harness.wait_for(
        lambda: first.path("paused").exists() and saved in harness.committed_batches(first), process, first
    )
    harness.kill(process)
    if resume_at is not None:
        changes["resume"] = next(name for name, found in checkpoints(first).items() if found["batch"] == resume_at)
    return first.but(name="second", seed=99, pause_at=None, **changes)


def test_a_run_that_is_killed_inside_an_epoch_goes_on_from_its_last_save(tmp_path):
    job = new_job(tmp_path, workers=2)
    whole = train(job)
    second = killed(job, 9, workers=1)
    assert train(second) == whole
    assert harness.steps(second) == harness.steps(job)[-len(harness.steps(second)) :]
    assert len(harness.batches(second)) == 18 - 9


def test_a_run_that_is_finished_trains_nothing_and_has_the_state_it_ended_with(tmp_path):
    job = new_job(tmp_path, **arguments(neftune_noise_alpha=None))
    whole = train(job)
    again = job.but(name="again", seed=99)
    assert train(again) == whole
    assert harness.steps(again) == []
    assert "nothing to train: max_steps=18 was reached" in again.path("log").read_text()


@pytest.mark.parametrize("limits", [({"num_train_epochs": 4}, {}), ({"max_steps": 16}, {"max_steps": 9})],
                         ids=["epochs", "steps, inside an epoch"])  # fmt: skip
def test_a_run_with_a_later_end_goes_on_as_if_it_had_had_it_from_the_start(tmp_path, limits):
    later, sooner = limits
    longer = new_job(tmp_path, **arguments(**CONSTANT, **later)).but(directory=str(tmp_path / "longer"))
    whole = train(longer)
    job = new_job(tmp_path, "short", **arguments(**CONSTANT, **sooner))
    train(job)
    more = new_job(tmp_path, "more", seed=99, **arguments(**CONSTANT, **later))
    assert train(more) == whole
    assert harness.batches(more) == harness.batches(longer)[-len(harness.batches(more)) :]


def test_a_run_that_was_stopped_stays_stopped(tmp_path):
    chosen = {"eval_strategy": "steps", "eval_steps": 2, "metric_for_best_model": "eval_loss", "learning_rate": 0.5}
    job = new_job(tmp_path, patience=1, **arguments(**chosen))
    whole = train(job)
    assert whole[0]["state"][0] < 18
    again = job.but(name="again", seed=99)
    assert train(again) == whole
    assert "training was stopped" in again.path("log").read_text()


def test_several_calls_of_train_go_on_in_the_one_that_was_cut(tmp_path):
    job = new_job(tmp_path, epochs=1, num_trains=3)
    whole = train(job)
    second = killed(job, 8, saved=2)
    assert train(second) == whole
    assert harness.steps(second) == harness.steps(job)[-len(harness.steps(second)) :]


CHANGES = {
    "seed": ({"seed": 8, "allow": ()}, "seed"),
    "batch size": ({"batch_size": 5}, "data.0.batch_size"),
    "accumulation": (arguments(gradient_accumulation_steps=2), "accumulation.num_steps"),
    "precision": (arguments(bf16=True), "precision"),
    "clipping": (arguments(max_grad_norm=0.5), "trainer.max_grad_norm"),
    "optimizer": (arguments(optim="sgd"), "optimizer.0.class"),
    "learning rate": (arguments(learning_rate=0.02), "optimizer.0.lr"),
    "scheduler": (arguments(lr_scheduler_type="linear"), "scheduler.0"),
    "model": ({"width": 9}, "model.layers.0.weight"),
}


def test_a_run_whose_configuration_changed_is_refused_before_anything_is_loaded(tmp_path):
    job = new_job(tmp_path, epochs=1)
    train(job)
    for name, (changes, fact) in CHANGES.items():
        changed = new_job(tmp_path, f"changed-{name}", epochs=1, **changes)
        error = fails(changed)
        assert error.startswith("ConfigChangedError"), name
        assert fact in error, name
        assert harness.steps(changed) == [], name


SIGNALS = {
    "at a step": ({}, {"signal at": 8}, 9),
    "in a window, heard at its end": ({"gradient_accumulation_steps": 4}, {"signal at": 8}, 10),
    "before a window, which is cut": ({"gradient_accumulation_steps": 4}, {"signal behind": 10}, 11),
}


@pytest.mark.parametrize("moment", SIGNALS)
def test_a_signal_that_the_trainer_heeds_ends_a_run_that_goes_on_where_it_was(tmp_path, moment):
    chosen, signal, num_batches = SIGNALS[moment]
    job = new_job(tmp_path, save_steps=100, **arguments(enable_jit_checkpoint=True, **chosen))
    whole = train(job)
    first = job.but(name="first", directory=str(tmp_path / "told"), options={**job.options, **signal})
    train(first)
    assert len(harness.batches(first)) == num_batches
    assert [progress["batch"] for progress in checkpoints(first).values()] == [0, num_batches]
    second = first.but(name="second", seed=99, options=job.options)
    assert train(second) == whole
    assert len(harness.batches(second)) == 18 - num_batches
    assert harness.steps(second) == harness.steps(job)[-len(harness.steps(second)) :]
    lineage = Lineage(open_store(second.directory))
    told = [read_history(lineage.store, attempt.name).cause for attempt in lineage.attempts()]
    assert told == ["preempted", "finished"]


def test_tensorboard_shows_each_step_once(tmp_path):
    chosen = arguments(report_to=["tensorboard"], eval_strategy="steps", eval_steps=3)
    job = new_job(tmp_path, **chosen)
    train(job)
    second = killed(job, 9, resume_at=6)
    train(second)
    (folder,) = Path(f"{second.directory}-hf/runs").glob("*")
    assert len(list(folder.glob("events*"))) == 2
    board = EventAccumulator(str(folder)).Reload()
    (whole,) = Path(f"{job.directory}-hf/runs").glob("*")
    expected = EventAccumulator(str(whole)).Reload()
    for name in ("train/loss", "eval/loss", "train/learning_rate"):
        found = [(event.step, event.value) for event in board.Scalars(name)]
        assert found == [(event.step, event.value) for event in expected.Scalars(name)]
    assert [event.step for event in board.Scalars("train/loss")] == [*range(1, 19)]
