"""A killed and resumed run does what the uninterrupted run did, to the last bit."""

from __future__ import annotations

import random

import pytest
from harness import Job, assert_same_run, assert_tail, batches, committed, kill_at, kill_somewhere, reads, train

NUM_BATCHES = 15  # three epochs of five


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    root = tmp_path_factory.mktemp("reference")
    job = Job(str(root), "reference", str(root / "ckpt"))
    return job, train(job)


def new_job(tmp_path, **changes):
    return Job(str(tmp_path), "first", str(tmp_path / "ckpt")).but(**changes)


@pytest.mark.parametrize("cut", range(1, NUM_BATCHES))
def test_a_cut_at_any_batch_changes_nothing(tmp_path, reference, cut):
    first = new_job(tmp_path)
    kill_at(first, cut)
    second = first.but(name="second", seed=1000 + cut)
    assert_tail(reference, train(second), second)
    found = batches(second)
    assert len(found) == NUM_BATCHES - cut
    assert sorted(reads(second)) == sorted(i for s in found for i in s["ids"])  # nothing consumed is read again


@pytest.mark.parametrize(
    ("before", "after"),
    [({"workers": 2}, {"workers": 2}), ({"workers": 2, "persistent": True},) * 2, ({"workers": 4}, {"workers": 0})],
    ids=["2 workers", "2 persistent workers", "4 then 0 workers"],
)
@pytest.mark.parametrize("cut", [3, pytest.param(9, marks=pytest.mark.slow), 10])
def test_workers_change_nothing(tmp_path, reference, before, after, cut):
    first = new_job(tmp_path, **before)
    kill_at(first, cut)
    second = first.but(name="second", seed=5, **{"workers": 0, "persistent": False, **after})
    assert_same_run(reference, train(second), first, second)
    assert sorted(reads(second)) == sorted(i for s in batches(second) for i in s["ids"])
    assert len(batches(second)) == NUM_BATCHES - cut


def test_two_cuts_in_one_epoch_change_nothing(tmp_path, reference):
    first = new_job(tmp_path, workers=2)
    kill_at(first, 6)
    second = first.but(name="second", seed=8)
    kill_at(second, 8)
    third = first.but(name="third", seed=9)
    assert_same_run(reference, train(third), first, second, third)
    assert len(batches(third)) == NUM_BATCHES - 8


def test_a_kill_before_the_first_periodic_save_goes_on_from_the_save_at_the_start(tmp_path, reference):
    first = new_job(tmp_path, save_steps=100)
    kill_at(first, 2, saved=0)
    second = first.but(name="second", seed=8)
    assert_same_run(reference, train(second), first, second)
    assert len(batches(second)) == NUM_BATCHES
    assert "resumed at step 0" in second.path("log").read_text()


@pytest.mark.parametrize(
    ("total", "num_samples"),
    [(30, 120), pytest.param(200, 640, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])],
    ids=["30", "200"],
)
def test_kills_at_random_moments_change_nothing(tmp_path, total, num_samples):
    directory = str(tmp_path / "reference")
    long = new_job(tmp_path, name="reference", directory=directory, num_samples=num_samples, epochs=4)
    reference = long, train(long)
    moments = random.Random(20)
    first = long.but(name="start-0", directory=str(tmp_path / "ckpt"), workers=2, slow_s=0.15)
    jobs = [first]
    # a moment among the batches, so that a busy machine has time to come to one; none at all is in the start itself
    while len(jobs) <= total and kill_somewhere(jobs[-1], moments.choice((0, 1, 1, 2)), moments.random() * 0.4):
        jobs.append(first.but(name=f"start-{len(jobs)}", seed=seed_of(first, 100 + len(jobs))))
    assert len(jobs) == total + 1
    last = first.but(name="last", seed=seed_of(first, 99), slow_s=0.0)
    assert_same_run(reference, train(last), *jobs[:-1], last)
    assert "resumed at step" in last.path("log").read_text()


def seed_of(job, other):
    """Any seed will do for a run that goes on; without a save it begins anew, with its own."""
    return other if committed(job) else job.seed


@pytest.mark.parametrize("cut", [5, 10, NUM_BATCHES])
def test_a_cut_at_the_end_of_an_epoch_changes_nothing(tmp_path, reference, cut):
    first = new_job(tmp_path)
    kill_at(first, cut, in_epoch_end=True)
    second = first.but(name="second", seed=1000 + cut)
    assert_tail(reference, train(second), second)
    assert len(batches(second)) == NUM_BATCHES - cut
