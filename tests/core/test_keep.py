"""`Keep` over the life of a run, and what is told when its metric is missing."""

from __future__ import annotations

import math

import crafted
import pytest

from resume_core import Keep, SaveEvery
from resume_core.errors import CheckpointNotFoundError
from resume_core.storage import Lineage, open_store

EVERY = SaveEvery(steps=1, minutes=None)


def steps(directory, file="manifest.json"):
    store = open_store(directory)
    found = [
        int(name[5:14])
        for attempt in store.list("")
        for name in store.list(attempt)
        if name.startswith("step-") and store.exists(f"{attempt}/{name}/{file}")
    ]
    return sorted(found)


def run_with(start, directory, keep, num_steps=9, losses=()):
    run = start(directory, save=EVERY, keep=keep)
    for _ in range(num_steps):
        if run.num < len(losses):
            run.toy.metrics = {"loss": losses[run.num]}
        run.train(1)
    run.session.end()
    return run


def test_milestones_by_steps_stay_beside_the_newest(directory, start):
    run_with(start, directory, Keep(last=1, every_steps=4))
    assert steps(directory) == [4, 8, 9]


def test_milestones_of_earlier_attempts_stay(directory, start):
    keep = Keep(last=1, every_steps=4)
    run_with(start, directory, keep, 5)
    run_with(start, directory, keep, 5)
    run_with(start, directory, keep, 3)
    assert steps(directory) == [4, 8, 12, 13]


@pytest.mark.parametrize(("mode", "best"), [("min", 4), ("max", 2)])
def test_the_best_by_a_metric_stays_and_nan_never_is(directory, start, mode, best):
    losses = [2.0, 3.0, math.nan, 1.0, 1.0, 2.5, math.nan, 3.0, 2.0]
    run_with(start, directory, Keep(last=1, best="loss", mode=mode), losses=losses)
    assert steps(directory) == [best, 9]


def test_an_infinite_metric_is_never_the_best(directory, start):
    run_with(start, directory, Keep(last=1, best="loss", mode="max"), 4, losses=[1.0, math.inf, 2.0, -math.inf])
    assert steps(directory) == [3, 4]


def test_a_metric_that_no_save_has_is_said_once_after_the_first_epoch(directory, start, caplog):
    run = start(directory, save=EVERY, keep=Keep(best="val_loss"))
    run.toy.metrics = {"loss": 1.0}
    run.train(2)
    assert not [r for r in caplog.records if "val_loss" in r.getMessage()]
    for _ in range(3):
        run.train(1, epoch=1)
    run.session.end()
    (said,) = [r.getMessage() for r in caplog.records if "val_loss" in r.getMessage()]
    assert "there is: loss" in said


def test_older_milestones_are_left_with_their_weights(directory, start):
    run_with(start, directory, Keep(last=2, every_steps=2, thin_after=3))
    assert steps(directory) == [6, 8, 9]
    assert steps(directory, "weights.json") == [2, 4]
    assert steps(directory, "model.safetensors") == [2, 4, 6, 8, 9]
    assert steps(directory, "training.safetensors") == [6, 8, 9]


def test_a_checkpoint_of_weights_alone_is_never_gone_on_from_and_naming_it_says_what_can_be(directory, start):
    run = run_with(start, directory, Keep(last=1, every_steps=2, thin_after=1))
    name = f"{run.session._attempt.name}/step-000000004"
    with pytest.raises(CheckpointNotFoundError, match=r"weights alone are left.*What exists: .*step-000000009"):
        start(directory, resume=name)
    lineage = Lineage(open_store(directory))
    store = open_store(directory)
    for ref in list(lineage.candidates()):
        store.delete_tree(ref.path)
    assert list(lineage.candidates()) == []
    with pytest.raises(CheckpointNotFoundError, match="holds no checkpoint"):
        start(directory, resume="must")


def test_a_header_made_by_hand_keeps_that_checkpoint_alone_and_is_said_once(tmp_path, start, caplog):
    run = start(tmp_path, save=EVERY, keep=Keep(last=2)).train(2)
    run.session.wait()
    crafted.change(next(tmp_path.glob("attempt-*/step-000000001/manifest.json")), "manifest", header={"finished": "x"})
    run.train(4).session.end()
    assert steps(str(tmp_path)) == [1, 5, 6]
    assert caplog.text.count("step-000000001 stays: the header of") == 1
