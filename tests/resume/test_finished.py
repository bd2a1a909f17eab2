"""A run that has come to its end: started again, it trains nothing; with more to do, it goes on before its end."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from harness import Job, assert_tail, batches, committed, kill_at, steps, train

ENDS = {
    "epochs": {"trainer": {"max_epochs": 2}},
    "steps in the middle of an epoch": {"trainer": {"max_steps": 7}},
    "steps at the end of an epoch": {"trainer": {"max_steps": 10}},
    "steps inside a window": {"trainer": {"max_steps": 3, "accumulate_grad_batches": 2}},
    "early stopping in an epoch": {
        "trainer": {"val_check_interval": 2},
        "stock": {"EarlyStopping": {"monitor": "val_loss", "divergence_threshold": -1.0}},
    },
    "early stopping after an epoch": {
        "stock": {
            "EarlyStopping": {"monitor": "loss_epoch", "divergence_threshold": -1.0, "check_on_train_epoch_end": True}
        },
    },
    "time": {"stock": {"Timer": {"duration": {"microseconds": 1}}}},
    "an averaged model": {"trainer": {"max_epochs": 1}, "stock": {"WeightAveraging": {}}},
    "an epoch for batch norms": {"module": "normed", "others": ["swa"]},
}


def new_job(tmp_path, name="first", directory="ckpt", **changes):
    return Job(str(tmp_path), name, str(tmp_path / directory)).but(**changes)


@pytest.mark.parametrize("end", ENDS)
def test_a_finished_run_started_again_has_the_end_state_and_trains_nothing(tmp_path, end):
    first = new_job(tmp_path, options=ENDS[end])
    expected = train(first)
    assert batches(first)
    before = committed(first)
    again = first.but(name="again", seed=99)
    found = train(again)
    assert found == expected
    assert steps(again) == []
    assert committed(first) == before
    assert len(list(Path(first.directory).glob("attempt-*"))) == 1
    assert again.path("log").read_text().count("nothing to train") == 1


LATER = {
    "epochs": ({"trainer": {"max_epochs": 2}}, {"trainer": {"max_epochs": 3}}),
    "epochs, without validation": (
        {"trainer": {"max_epochs": 1, "limit_val_batches": 0}},
        {"trainer": {"max_epochs": 3, "limit_val_batches": 0}},
    ),
    "steps": ({"trainer": {"max_steps": 7}}, {"trainer": {"max_steps": 12}}),
    "steps in the last epoch": ({"trainer": {"max_steps": 12}}, {"trainer": {"max_steps": -1}}),
    "steps from the end of an epoch": ({"trainer": {"max_steps": 10}}, {"trainer": {"max_steps": 15}}),
    "time": (
        {"stock": {"Timer": {"duration": {"microseconds": 1}}}},
        {"stock": {"Timer": {"duration": {"hours": 9}}}},
    ),
}  # fmt: skip


@pytest.mark.parametrize("limit", LATER)
def test_a_later_end_gives_the_run_that_had_it_from_the_start(tmp_path, limit):
    short, long = LATER[limit]
    whole = new_job(tmp_path, "reference", "reference", options=long)
    reference = whole, train(whole)
    first = new_job(tmp_path, options=short, save_steps=100, keep=1)  # the last boundary is saved, whatever else is
    train(first)
    second = new_job(tmp_path, "second", options=long, seed=5)
    assert_tail(reference, train(second), second)
    assert len(batches(second)) == len(batches(whole)) - len(batches(first))
    assert "the end of a shorter run" in second.path("log").read_text()
    third = second.but(name="third")
    assert train(third) == reference[1]
    assert steps(third) == []


def test_a_run_whose_end_was_moved_before_what_was_done_trains_nothing_and_says_so(tmp_path):
    first = new_job(tmp_path)
    kill_at(first, 12)
    for name, limits in (("epochs", {"max_epochs": 2}), ("steps", {"max_steps": 4})):
        again = new_job(tmp_path, name, options={"trainer": limits})
        assert train(again)["step"] == 12
        assert steps(again) == []
        assert f"nothing to train: max_{name}=" in again.path("log").read_text()


def test_a_kill_after_the_last_boundary_and_before_the_end_state_loses_only_the_hooks_between(tmp_path):
    whole = new_job(tmp_path, "reference", "reference", epochs=1)
    reference = whole, train(whole)
    first = new_job(tmp_path, epochs=1, save_steps=100)
    kill_at(first, 5, in_epoch_end=True)
    second = first.but(name="second", seed=6)
    assert_tail(reference, train(second), second)
    assert batches(second) == []


@pytest.fixture(scope="module", params=["shuffled", "numbered"])
def two_fits(request, tmp_path_factory):
    """Three epochs in two fits; the loader whose sampler counts its passes is made anew for each fit."""
    options = {"fits": [2, 3], "loader": request.param}
    whole = new_job(tmp_path_factory.mktemp("reference"), "reference", options=options)
    return whole, train(whole)


@pytest.mark.parametrize(("cut", "in_epoch_end"), [(3, False), (10, True), (11, False), (14, False)])
def test_two_fits_of_one_trainer_go_on_wherever_they_were_cut(tmp_path, two_fits, cut, in_epoch_end):
    first = new_job(tmp_path, options=two_fits[0].options, keep=1)
    kill_at(first, cut, in_epoch_end=in_epoch_end)
    second = first.but(name="second", seed=50 + cut)
    assert_tail(two_fits, train(second), second)
    assert len(batches(second)) == 15 - cut


def test_two_fits_that_were_completed_train_nothing(tmp_path, two_fits):
    whole = two_fits[0]
    again = whole.but(name="again", seed=9)
    assert train(again) == two_fits[1]
    assert steps(again) == []


def test_a_run_killed_between_two_fits_begins_the_second_from_the_end_of_the_first(tmp_path):
    whole = new_job(tmp_path, "reference", "reference", options={"fits": [1, 2], "loader": "numbered"})
    reference = whole, train(whole)
    first = new_job(tmp_path, options={"fits": [1], "loader": "numbered"})
    train(first)  # what is on disk when the second fit has not begun
    second = new_job(tmp_path, "second", options={"fits": [1, 2], "loader": "numbered"}, seed=4)
    assert_tail(reference, train(second), second)
    assert len(batches(second)) == 5


def test_a_fit_whose_end_state_is_gone_is_passed_over_until_a_later_one_goes_on(tmp_path):
    options = {"fits": [1, 2]}
    whole = new_job(tmp_path, "reference", "reference", options=options)
    reference = whole, train(whole)
    first = new_job(tmp_path, options=options)
    kill_at(first, 8)
    shutil.rmtree(next(Path(first.directory).glob("attempt-0001-*/step-000000005.2")))
    second = first.but(name="second", seed=4)
    assert_tail(reference, train(second), second)
    assert "is not in" in second.path("log").read_text()


def test_a_run_that_was_stopped_goes_on_when_a_checkpoint_is_named(tmp_path):
    stop = {"monitor": "val_loss", "divergence_threshold": -1.0}
    options = {"trainer": {"val_check_interval": 2}, "stock": {"EarlyStopping": stop}}
    train(new_job(tmp_path, options=options))
    stop["divergence_threshold"] = None
    again = new_job(tmp_path, "again", options=options, resume="attempt-0001/step-000000002")
    assert train(again)["epoch"] == 3
    assert len(batches(again)) == 13
