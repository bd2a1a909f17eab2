"""Kills, ends, ranges of the script's own, and everything else that a run under Accelerate goes through."""

from __future__ import annotations

import harness
import pytest
from accelerate_runs import assert_resumes, checkpoints, fails, new_job, some, start, train
from accelerate_scripts import second_of


def killed(job, folder, *, saved=None):
    """Start it in another directory and kill it where it pauses, with all before (or ``saved`` batches) committed."""
    first = job.but(name="first", directory=str(folder))
    inside = second_of(first) if "pause_second_at" in job.options else first
    (process,) = start(first)
    at = inside.pause_at if saved is None else saved
    harness.wait_for(lambda: inside.path("paused").exists() and at in harness.committed_batches(inside), process, first)
    harness.kill(process)
    return first


def test_a_run_that_is_killed_inside_an_epoch_goes_on_from_its_last_save(tmp_path):
    job = new_job(tmp_path, workers=2)
    whole = train(job)
    first = killed(job.but(pause_at=9), tmp_path / "killed")
    second = first.but(name="second", seed=99, pause_at=None)
    assert train(second) == whole
    assert harness.steps(second) == harness.steps(job)[-len(harness.steps(second)) :]
    assert len(harness.batches(second)) == 18 - 9


@pytest.mark.parametrize("at", [7, 8])
def test_a_run_that_is_killed_inside_a_window_goes_on_from_its_beginning(tmp_path, at):
    job = new_job(tmp_path, window={"num_steps": 3})
    whole = train(job)
    first = killed(job.but(pause_at=at), tmp_path / "killed", saved=6)
    second = first.but(name="second", seed=99, pause_at=None)
    assert train(second) == whole
    assert harness.steps(second) == harness.steps(job)[-len(harness.steps(second)) :]
    assert len(harness.batches(second)) == 18 - 6


def test_a_run_that_is_killed_after_the_last_batch_of_an_epoch_runs_the_rest_of_its_code(tmp_path):
    job = new_job(tmp_path)
    whole = train(job)
    first = job.but(name="first", directory=str(tmp_path / "killed"), pause_at=12, pause_in_epoch_end=True)
    (process,) = start(first)
    harness.wait_for(lambda: first.path("paused").exists(), process, first)
    harness.kill(process)
    second = first.but(name="second", seed=99, pause_at=None)
    assert train(second) == whole
    assert [step["ids"] for step in harness.steps(second)[:2]] == [[], []]  # the validation and the end of epoch 1
    assert len(harness.batches(second)) == 6


def test_a_run_that_is_finished_trains_nothing_and_has_the_state_it_ended_with(tmp_path):
    job = new_job(tmp_path)
    whole = train(job)
    again = job.but(name="again", seed=99)
    assert train(again) == whole
    assert harness.steps(again) == []
    assert "nothing to train: max_epochs=3 was reached" in again.path("log").read_text()


@pytest.mark.parametrize("window", [1, 4], ids=["plain", "cut inside a window"])
def test_a_run_with_more_epochs_goes_on_as_if_it_had_had_them_from_the_start(tmp_path, window):
    options = {"window": {"num_steps": window, "sync_with_dataloader": False}}  # 3 epochs of 6 batches end inside one
    longer = new_job(tmp_path, epochs=4, **options).but(directory=str(tmp_path / "longer"))
    whole = train(longer)
    job = new_job(tmp_path, "short", **options)
    train(job)
    more = job.but(name="more", seed=99, epochs=4)
    assert train(more) == whole
    assert harness.steps(more) == harness.steps(longer)[-len(harness.steps(more)) :]
    assert len(harness.batches(more)) == 6


RANGES = {
    "plain": {},
    "in turn": {"style": "in turn"},
    "zip": {"style": "zip"},
    "alternating": {"style": "alternating"},
    "cycled": {"style": "cycled"},
    "cycled and held": {"style": "cycled", "held": True},
    "cycled and held, made late": {"style": "cycled", "held": "made late"},
}


@pytest.mark.parametrize("num", [pytest.param(99, id="all", marks=pytest.mark.slow), pytest.param(5, id="5")])
@pytest.mark.parametrize("kind", RANGES)
def test_a_script_with_a_range_of_its_own_goes_on_exactly(tmp_path, kind, num):
    job = new_job(tmp_path, range=True, **RANGES[kind])
    whole = train(job)
    assert_resumes(job, whole, some(list(checkpoints(job)), num))
    epochs = [progress["epoch"] for progress in checkpoints(job).values()]
    assert epochs == sorted(epochs)
    assert set(epochs) == {0, 1, 2}


@pytest.mark.parametrize("num", [pytest.param(99, id="all", marks=pytest.mark.slow), pytest.param(6, id="6")])
@pytest.mark.parametrize("way", ["range", "epochs"])
def test_loaders_that_are_begun_anew_by_generators_without_an_end_go_on_exactly(tmp_path, way, num):
    job = new_job(tmp_path, style="endless", range=way == "range", epochs=1)
    whole = train(job)
    assert_resumes(job, whole, some(list(checkpoints(job)), num))


def test_a_loop_that_stops_inside_an_epoch_ends_the_same_however_often_it_is_started(tmp_path):
    job = new_job(tmp_path, stop_at=8)
    whole = train(job)
    assert_resumes(job, whole, some(list(checkpoints(job)), 4))
    again = job.but(name="again", seed=99)
    assert train(again) == whole
    assert len(harness.batches(again)) <= 1  # from the save before the last batch


CHANGES = {
    "seed": ({"seed": 8, "allow": ()}, "seed"),
    "batch size": ({"batch_size": 5}, "data.0.batch_size"),
    "accumulation": ({"window": {"num_steps": 2}}, "accumulation.num_steps"),
    "precision": ({"precision": "bf16"}, "precision"),
    "optimizer": ({"optimizer": "SGD"}, "optimizer.0.class"),
    "learning rate": ({"lr": 0.02}, "optimizer.0.lr"),
    "scheduler": ({"horizon": 50}, "scheduler.0.T_max"),
    "model": ({"width": 9}, "model.0.weight"),
    "sampler": ({"loading": {"use_seedable_sampler": True}}, "loading.use_seedable_sampler"),
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


def test_a_change_that_is_allowed_goes_on(tmp_path):
    job = new_job(tmp_path, epochs=2)
    train(job)
    name = list(checkpoints(job))[2]
    changed = new_job(tmp_path, "changed", epochs=2, lr=0.02, resume=name, allow=("seed", "optimizer"))
    train(changed)
    assert len(harness.batches(changed)) == 10


TWO_RUNS = [
    pytest.param(second, way, marks=[] if (second == "the same accelerator") == (way == "range") else pytest.mark.slow)
    for second in ("a new accelerator", "the same accelerator", "the same loaders")
    for way in ("epochs", "range")
]


@pytest.mark.parametrize(("second", "way"), TWO_RUNS)
def test_a_script_with_two_runs_goes_on_in_the_one_that_was_killed(tmp_path, second, way):
    options = {"second": second, "range": way == "range", "loading": {"use_seedable_sampler": True}}
    job = new_job(tmp_path, epochs=2, **options)
    whole = [*train(job), harness.finished(second_of(job))]
    first = killed(job.but(options=options | {"pause_second_at": 8}), tmp_path / "killed")
    again = first.but(name="again", seed=99, options=options)
    assert [*train(again), harness.finished(second_of(again))] == whole
    tail = harness.steps(second_of(again))
    assert tail == harness.steps(second_of(job))[-len(tail) :]
    assert len(harness.batches(second_of(again))) == 12 - 8


def test_a_script_with_two_runs_that_is_killed_in_the_first_does_the_second_alike(tmp_path):
    options = {"second": "the same accelerator"}
    job = new_job(tmp_path, epochs=2, **options)
    whole = [*train(job), harness.finished(second_of(job))]
    first = killed(job.but(pause_at=8), tmp_path / "killed")
    again = first.but(name="again", pause_at=None)
    assert [*train(again), harness.finished(second_of(again))] == whole
    assert harness.steps(second_of(again)) == harness.steps(second_of(job))
