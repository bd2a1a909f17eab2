"""Several ranks (DDP, gloo), killed together and started again."""

from __future__ import annotations

import os
import shutil
import signal

import pytest
from harness import Job, batches, committed_batches, kill, wait_for
from ranks import assert_tails, fails, kill_at, of_rank, start, train

SIZES = {"plain": 2, "windows": 3, "many buckets": 3, "own draws": 2}
KINDS = {
    "plain": {"net": "normalised", "trainer": {"val_check_interval": 2}},
    "windows": {"trainer": {"accumulate_grad_batches": 2}},
    "many buckets": {"ddp": {"bucket_cap_mb": 1e-4}, "width": 32},
    "own draws": {"seeds": [1, 2], "sync": True},
}
CUTS = {"plain": [6], "windows": [3, 5], "many buckets": [1, 4], "own draws": [5]}


def job_of(tmp_path, name, options, **changes):
    folder = str(tmp_path / name.split("-")[0])
    return Job(str(tmp_path), name, folder, options=options, num_samples=28, keep=99).but(**changes)


@pytest.mark.parametrize("kind", KINDS)
def test_ranks_go_on_exactly(tmp_path, kind):
    size, options = SIZES[kind], KINDS[kind]
    workers = 1 if kind == "plain" else 0
    whole = job_of(tmp_path, "reference", options, workers=workers)
    reference = whole, train(whole, size)
    per_epoch = len(batches(of_rank(whole, 0))) // whole.epochs
    for cut in CUTS[kind]:
        saved = cut - cut % per_epoch % 2 if kind == "windows" else cut
        first = job_of(tmp_path, f"cut{cut}-first", options, workers=workers)
        kill_at(first, size, cut, saved=saved)
        second = job_of(tmp_path, f"cut{cut}-second", options, seed=50 + cut)
        assert_tails(reference, train(second, size), second, saved=saved)


def test_ranks_go_on_exactly_from_a_scratch(tmp_path):
    whole = job_of(tmp_path, "reference", {})
    reference = whole, train(whole, 2)
    first = job_of(tmp_path, "run-first", {}, scratch=str(tmp_path / "scratch"))
    kill_at(first, 2, 5)
    second = job_of(tmp_path, "run-second", {}, seed=9, scratch=first.scratch)
    kill_at(second, 2, 8)
    shutil.rmtree(first.scratch)
    third = job_of(tmp_path, "run-third", {}, seed=10, scratch=first.scratch)
    assert_tails(reference, train(third, 2), third)


def test_what_ranks_draw_for_their_samples_differs(tmp_path):
    whole = job_of(tmp_path, "reference", {})
    train(whole, 2)
    noise = [[tuple(x[1:]) for step in batches(of_rank(whole, rank)) for x in step["x"]] for rank in range(2)]
    drawn = [value for of_one in noise for sample in of_one for value in sample]
    assert len(drawn) == len(set(drawn))
    ids = [[index for step in batches(of_rank(whole, rank))[:4] for index in step["ids"]] for rank in range(2)]
    assert sorted(ids[0] + ids[1]) == list(range(28))


def test_a_rank_that_dies_in_a_save_leaves_the_save_before(tmp_path):
    whole = job_of(tmp_path, "reference", {}, epochs=2)
    reference = whole, train(whole, 2)
    first = job_of(tmp_path, "run-first", {"stuck_at": 3}, epochs=2)
    processes = start(first.but(settle=True), 2)
    stuck = of_rank(first, 1).path("stuck")
    wait_for(stuck.exists, processes[0], of_rank(first, 0))
    os.kill(processes[1].pid, signal.SIGKILL)
    processes[1].join()
    wait_for(lambda: 2 in committed_batches(first), processes[0], of_rank(first, 0))
    kill(processes[0])
    assert max(committed_batches(first)) == 2
    second = job_of(tmp_path, "run-second", {}, epochs=2, seed=3)
    assert_tails(reference, train(second, 2), second, saved=2)


def test_a_rank_whose_clock_is_off_changes_nothing(tmp_path):
    options = {"clock_off_s": 5.0}
    whole = job_of(tmp_path, "reference", options, save_steps=None, slow_s=0.02)
    reference = whole, train(whole, 2)
    first = job_of(tmp_path, "run-first", options, save_steps=None, slow_s=0.02)
    processes = start(first, 2)
    wait_for(lambda: max(committed_batches(first), default=0) >= 2, processes[0], of_rank(first, 0))
    for process in processes:
        kill(process)
    second = job_of(tmp_path, "run-second", options, save_steps=None, seed=3)
    assert_tails(reference, train(second, 2), second)


def test_only_rank_0_speaks(tmp_path):
    job = job_of(tmp_path, "run", {}, epochs=1)
    train(job, 2)
    logs = [of_rank(job, rank).path("log").read_text() for rank in range(2)]
    assert "a new run" in logs[0]
    assert "a new run" not in logs[1]


def test_another_number_of_ranks_is_refused_with_both_numbers(tmp_path):
    job = job_of(tmp_path, "run", {}, epochs=1)
    train(job, 2)
    for error in fails(job.but(name="more"), 3):
        assert "world_size" in error
        assert "2" in error
        assert "3" in error


def test_a_finished_run_of_several_ranks_trains_nothing_and_goes_on_with_a_later_end(tmp_path):
    whole = job_of(tmp_path, "reference", {}, epochs=2)
    reference = whole, train(whole, 2)
    first = job_of(tmp_path, "run-first", {}, epochs=1, save_steps=100)
    expected = train(first, 2)
    again = job_of(tmp_path, "run-again", {}, epochs=1, seed=9)
    assert train(again, 2) == expected
    assert all(batches(of_rank(again, rank)) == [] for rank in range(2))
    longer = job_of(tmp_path, "run-longer", {}, epochs=2, seed=5)
    assert_tails(reference, train(longer, 2), longer, saved=len(batches(of_rank(first, 0))))
