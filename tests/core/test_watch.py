"""Losses and gradients that are not finite, or jump."""

from __future__ import annotations

import math
import random

import pytest
import torch
from trained import Run

from resume_core import DivergedError, SaveEvery, Watch
from resume_core.evidence.observer import Observer
from resume_core.evidence.watch import Series
from resume_core.state import Progress


def noisy(num, seed=0, start=2.0):
    chance = random.Random(seed)
    return [start * 0.99**n * math.exp(chance.gauss(0, 0.3)) for n in range(num)]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_said_once_as_long_as_it_stays(value):
    series = Series("the loss")
    assert series.add(1.0, 1) is None
    assert series.add(value, 2) == f"the loss is {value} at step 2"
    assert series.add(value, 3) is None
    assert series.add(1.0, 4) is None
    assert series.add(value, 5) is not None


def test_a_jump_that_stays_is_said_and_a_single_one_is_not():
    series = Series("the loss")
    assert [series.add(value, step) for step, value in enumerate(noisy(200))] == [None] * 200
    assert series.add(50.0, 200) is None
    assert series.add(0.3, 201) is None
    said = [series.add(50.0, step) for step in (202, 203, 204, 205)]
    assert [text is not None for text in said] == [False, False, True, False]
    assert "jumped to 50 at step 204" in said[2]


def test_behind_a_resume_one_is_enough():
    series = Series("the loss")
    for step, value in enumerate(noisy(200)):
        series.add(value, step)
    assert series.add(50.0, 200, is_strict=True) is not None


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("start", [1e-6, 3.0, 1e4])
def test_ordinary_curves_give_no_alarm(seed, start):
    chance, series = random.Random(seed), Series("the loss")
    curves = [
        noisy(400, seed, start),
        [start * (1 + n % 7) for n in range(400)],
        [-start * chance.random() for _ in range(400)],
        [start] * 400,
        [start * chance.paretovariate(2.5) for _ in range(400)],
    ]
    for step, value in enumerate(value for curve in curves[:1] for value in curve):
        assert series.add(value, step) is None
    for curve in curves[1:]:
        series = Series("the loss")
        assert [text for step, value in enumerate(curve) if (text := series.add(value, step))] == []


def test_its_range_is_part_of_a_checkpoint(tmp_path, caplog):
    directory = str(tmp_path / "run")
    Run(directory).train(40).session.wait()
    run = Run(directory)
    assert len(run.session._evidence._losses._values) == 40
    run.train(1, loss=1e6)
    assert "the loss jumped to 1.00001e+06" in caplog.text  # known from before the resume


def test_a_resumed_run_is_stopped_by_nothing_that_would_not_have_stopped_it(tmp_path):
    """Behind a resume one value is enough for a warning; stopped by it, no start would ever get beyond that step."""
    directory, stops = str(tmp_path / "run"), Watch(on="stop")
    Run(directory, watch=stops).train(40).session.wait()
    run = Run(directory, watch=stops)
    run.train(1, loss=1e6).train(1)
    with pytest.raises(DivergedError, match="the loss jumped to"):
        run.train(3, loss=1e6).train(1)


@pytest.mark.parametrize("text", ["%", "AAA", None, 3])
def test_a_range_that_cannot_be_read_is_found_anew(text):
    series = Series("the loss")
    series.restore(text)
    assert series.add(1.0, 1) is None


def test_warnings_are_the_default(tmp_path, caplog):
    Run(str(tmp_path / "run")).train(2, loss=math.nan).train(2)
    assert caplog.text.count("the loss is nan at step 1") == 1
    assert caplog.text.count('EXACT_RESUME="step N"') == 1


def test_stop_ends_the_run_before_anything_is_saved_there(tmp_path):
    run = Run(str(tmp_path / "run"), watch=Watch(on="stop")).train(4)
    with pytest.raises(DivergedError, match=r"is nan at step 5\. Nothing was saved there\. A restart") as caught:
        run.train(1, loss=math.nan)  # a save is due
    assert 'EXACT_RESUME="step N"' in str(caught.value)
    run.session.end(caught.value)
    assert sorted(path.name for path in tmp_path.glob("run/*/step-*")) == ["step-000000000"]


def test_no_save_is_taken_of_what_waits_on_a_device_to_be_read(tmp_path, monkeypatch):
    monkeypatch.setattr("resume_core.evidence.observer._one_number", lambda loss: loss.detach().clone())
    run = Run(str(tmp_path / "run"), watch=Watch(on="stop")).train(3)
    run.train(1, loss=math.nan)
    with pytest.raises(DivergedError, match="the loss is nan at step 4"):
        run.train(1)  # a save is due
    assert sorted(path.name for path in tmp_path.glob("run/*/step-*")) == ["step-000000000"]


def test_what_overflows_under_a_scaler_is_no_gradient():
    observer = Observer()
    observer.records = True
    observer.clipped_norm(torch.tensor(math.inf), may_overflow=True)
    observer.clipped_norm(torch.tensor(2.0), may_overflow=True)
    assert observer.take()[3] == [2.0]


def test_losses_without_a_step_that_is_counted_are_not_kept_for_ever(tmp_path, monkeypatch):
    monkeypatch.setattr("resume_core.evidence.evidence._MAX_OF_STEP", 4)
    run = Run(str(tmp_path / "run"))
    for batch in range(1, 10):
        run.session.observer.loss(torch.tensor(1.0))
        run.session.boundary(Progress(step=0, batch=batch))
    assert len(run.session._evidence._of_step) == 4


def test_behind_the_end_of_a_run_nothing_is_kept(tmp_path):
    run = Run(str(tmp_path / "run")).train(1)
    run.session.end()
    run.session.observer.loss(torch.tensor(1.0))
    assert not run.session.observer.losses


def test_gradients_are_watched_too(tmp_path, caplog):
    run = Run(str(tmp_path / "run"))
    run.train(1)
    run.session.observer.batch(torch.ones(1))
    run.toy.parameter.grad = torch.tensor([1.0, math.inf, 0.0])
    run.session.observer.gradients(run.toy.optimizer)
    run.train(1)
    assert "the norm of the gradients is inf at step 2" in caplog.text


@pytest.mark.parametrize("on", ["off", False])
def test_off_watches_nothing(tmp_path, caplog, on):
    Run(str(tmp_path / "run"), watch=Watch(on=on)).train(8, loss=math.nan)
    assert "nan" not in caplog.text


def test_losses_that_wait_on_a_device_are_read_together(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("resume_core.evidence.observer._one_number", lambda loss: loss.detach().clone())
    run = Run(str(tmp_path / "run")).train(10)
    run.train(1, loss=math.nan)
    assert "nan" not in caplog.text
    run.train(40)
    assert "the loss is nan at step 11" in caplog.text


@pytest.mark.parametrize("num_steps", [1, 31, 33])
def test_what_waits_to_be_read_is_read_when_the_run_ends(tmp_path, num_steps):
    run = Run(str(tmp_path / "run"), save=SaveEvery(steps=1000, minutes=None)).train(num_steps)
    run.session.end()
    assert [step for step, _ in run.session._history._losses] == [*range(1, num_steps + 1)]
