"""``ResumePlugin()`` in scripts that save, load and loop in their own ways."""

from __future__ import annotations

import accelerate
import pytest
import torch
from own_states import NUM_BATCHES, Run, assert_same, saving_at
from torch.utils.data import DataLoader

from accelerate_resume import Changes
from resume_core.errors import ConfigChangedError, ResumeError


def test_saving_by_hand_is_save_state(tmp_path):
    run = Run()
    with pytest.raises(ResumeError, match=r"save_state\(folder\)"):
        run.resume.save()


def test_names_are_given_before_anything_is_loaded(tmp_path):
    saving_at(3, tmp_path)
    run = Run(counters=False, changes=Changes(allow=("seed", "counters")))
    run.accelerator.load_state(tmp_path / "state")
    for ask in (lambda: run.resume.counters(done=0), lambda: run.resume.track(model=run.model)):
        with pytest.raises(ResumeError, match="load_state"):
            ask()


def test_epochs_are_asked_for_once_and_before_the_first_batch(tmp_path):
    run = Run()
    run.train_epoch()
    with pytest.raises(ResumeError, match="before the first batch"):
        run.resume.epochs(2)
    run = Run()
    run.resume.restore()
    with pytest.raises(ResumeError, match="one run has one call"):
        run.resume.epochs(2)


@pytest.mark.parametrize("where", [3, 5, 8, 10])
def test_a_run_goes_on_in_a_new_script(tmp_path, where):
    whole = saving_at(where, tmp_path)
    run = Run(seed=9)
    run.accelerator.load_state(tmp_path / "state")
    assert_same(run.to_the_end(), whole)
    assert len(run.seen) == 10 - where


def test_a_run_that_had_ended_goes_on_with_more_epochs(tmp_path):
    whole = Run().to_the_end(3)
    short = Run().to_the_end(2)
    short.accelerator.save_state(tmp_path / "state")
    run = Run(seed=9)
    run.accelerator.load_state(tmp_path / "state")
    assert_same(run.to_the_end(3), whole)
    assert len(run.seen) == NUM_BATCHES
    run = Run(seed=9)
    run.accelerator.load_state(tmp_path / "state")
    assert list(run.resume.epochs(2)) == []


def test_resumes_of_resumes_are_exact(tmp_path):
    whole = saving_at(2, tmp_path)
    run = Run(seed=9)
    run.accelerator.load_state(tmp_path / "state")
    for _ in run.resume.epochs(2):
        run.train_epoch(lambda done: run.accelerator.save_state(tmp_path / "again") if len(run.seen) == 5 else None)
    assert_same(run, whole)
    again = Run(seed=10)
    again.accelerator.load_state(tmp_path / "again")
    assert_same(again.to_the_end(), whole)
    assert len(again.seen) == 3


def test_a_script_that_simply_loads_goes_on_behind_the_last_batch(tmp_path):
    """It has a range of its own, and leaves the position to the plugin."""
    whole = saving_at(3, tmp_path)
    run = Run(seed=9)
    run.accelerator.load_state(tmp_path / "state")
    run.train_epoch()
    run.train_epoch()
    assert_same(run, whole)
    assert len(run.seen) == 7


@pytest.mark.parametrize(("where", "skips", "num_left"), [(3, 4, 7), (3, 0, 7), (5, 2, 5), (5, 5, 5)])
def test_what_a_script_has_computed_wrongly_is_said_and_what_was_saved_is_gone_on_from(
    tmp_path, messages, where, skips, num_left
):
    """As Accelerate's examples do with windows that the end of a loader closes: 4 steps are not 4 x 4 batches."""
    whole = saving_at(where, tmp_path)
    run = Run(seed=9)
    run.accelerator.load_state(tmp_path / "state")
    run.train_epoch(loader=run.accelerator.skip_first_batches(run.loader, skips))
    if len(run.seen) < num_left:
        run.train_epoch()
    assert_same(run, whole)
    assert len(run.seen) == num_left
    assert bool([m for m in messages() if f"was to skip {skips} batches" in m]) == (skips != where)


def test_a_save_before_the_batch_is_trained_on_begins_with_that_batch(tmp_path, messages):
    whole = Run()
    for epoch in whole.resume.epochs(2):
        for number, batch in enumerate(whole.loader):
            if (epoch, number) == (1, 2):
                whole.accelerator.save_state(tmp_path / "state")
            whole.train(batch)
    assert [m for m in messages() if "begins with that batch" in m]
    run = Run(seed=9)
    run.accelerator.load_state(tmp_path / "state")
    assert_same(run.to_the_end(), whole)
    assert len(run.seen) == 3


def test_a_save_at_the_top_of_an_epoch_begins_with_that_epoch(tmp_path):
    whole = Run()
    for epoch in whole.resume.epochs(2):
        if epoch == 1:
            whole.accelerator.save_state(tmp_path / "state")
        whole.train_epoch()
    run = Run(seed=9)
    run.accelerator.load_state(tmp_path / "state")
    assert_same(run.to_the_end(), whole)
    assert len(run.seen) == NUM_BATCHES


def test_a_save_between_two_loops_of_an_epoch_is_warned_of(tmp_path, messages):
    run = Run()
    for _ in run.resume.epochs(1):
        run.train_epoch()
        run.accelerator.save_state(tmp_path / "state")
        run.train_epoch()
    assert [m for m in messages() if "between two loops of an epoch" in m]


def test_a_save_behind_a_loop_that_holds_its_iterator_is_warned_of(tmp_path, messages):
    run = Run()
    held = iter(run.loader)
    for _ in run.resume.epochs(2):
        for _ in range(2):
            run.train(next(held))
        run.accelerator.save_state(tmp_path / "state")
    assert [m for m in messages() if "Make the iterator anew in each epoch" in m]


@pytest.mark.parametrize("first", ["load", "iter"])
def test_an_iterator_that_a_script_holds_goes_on_where_it_stood(tmp_path, first):
    whole = Run()
    held = iter(whole.loader)
    for number in range(4):
        whole.train(next(held))
        if number == 1:
            whole.accelerator.save_state(tmp_path / "state")
    run = Run(seed=9)
    held = iter(run.loader) if first == "iter" else None
    run.accelerator.load_state(tmp_path / "state")
    held = held or iter(run.loader)
    for _ in range(2):
        run.train(next(held))
    assert_same(run, whole)


def test_a_batch_that_a_script_looks_at_before_it_loads_does_no_harm(tmp_path):
    whole = Run()
    next(iter(whole.loader))
    for _ in whole.resume.epochs(2):
        whole.train_epoch(lambda done: whole.accelerator.save_state(tmp_path / "state") if len(whole.seen) == 7 else 0)
    run = Run(seed=9)
    next(iter(run.loader))
    run.accelerator.load_state(tmp_path / "state")
    assert_same(run.to_the_end(), whole)
    assert len(run.seen) == 3


def test_a_load_inside_a_loop_puts_back_what_accelerate_does_and_says_so(tmp_path, messages):
    run = Run()
    weights = None
    for number, batch in enumerate(run.loader):
        run.train(batch)
        if number == 1:
            run.accelerator.save_state(tmp_path / "state")
            weights = run.weights
        if number == 3:
            run.accelerator.load_state(tmp_path / "state")
            assert torch.equal(run.weights, weights)
    assert len(run.seen) == NUM_BATCHES
    assert [m for m in messages() if "load_state was called inside a loop" in m]


def test_a_load_between_loops_goes_back_to_where_it_was_saved(tmp_path):
    run = Run()
    run.train_epoch(lambda done: run.accelerator.save_state(tmp_path / "state") if done == 2 else None)
    first = list(run.seen)
    run.accelerator.load_state(tmp_path / "state")
    run.train_epoch()
    assert run.seen[NUM_BATCHES:] == first[2:]


def test_state_can_be_saved_again_right_after_it_was_loaded(tmp_path):
    whole = saving_at(7, tmp_path)
    copy = Run(seed=8)
    copy.accelerator.load_state(tmp_path / "state")
    copy.accelerator.save_state(tmp_path / "copy")
    run = Run(seed=9)
    run.accelerator.load_state(tmp_path / "copy")
    assert_same(run.to_the_end(), whole)
    assert len(run.seen) == 3


def test_the_function_that_skips_is_warned_of(tmp_path, messages):
    """It makes a loader past the Accelerator, whose method of that name is taken over."""
    saving_at(3, tmp_path)
    run = Run(seed=9)
    run.accelerator.load_state(tmp_path / "state")
    run.train_epoch(loader=accelerate.skip_first_batches(run.loader, 3))
    assert [m for m in messages() if "accelerator.skip_first_batches()" in m]


def test_a_loader_for_each_epoch_is_warned_of_when_the_script_counts_by_itself(tmp_path, messages):
    run = Run()
    run.train_epoch()
    late = run.accelerator.prepare(DataLoader(run.loader.dataset, 2, shuffle=True))
    with torch.no_grad():
        list(late)
    assert not [m for m in messages() if "Take the epochs from" in m]
    run.train_epoch(loader=late)
    assert [m for m in messages() if "Take the epochs from" in m]


def test_a_run_that_was_refused_may_begin_anew(tmp_path):
    saving_at(3, tmp_path)
    run = Run(lr=0.2)
    with pytest.raises(ConfigChangedError):
        run.accelerator.load_state(tmp_path / "state")
    assert_same(run.to_the_end(), Run(lr=0.2).to_the_end())


def test_two_iterators_may_be_made_before_either_gives_a_batch(tmp_path):
    def train(run, save):
        for number, (batch, other) in enumerate(zip(run.loader, run.other, strict=True), 1):
            run.train(batch)
            run.seen.append(other[0].flatten().tolist())
            save(number)

    def start(seed):
        run = Run(seed=seed)
        run.other = run.accelerator.prepare(DataLoader(run.loader.dataset, 2, shuffle=True))
        return run

    whole = start(7)
    train(whole, lambda number: whole.accelerator.save_state(tmp_path / "state") if number == 2 else None)
    run = start(9)
    run.accelerator.load_state(tmp_path / "state")
    train(run, lambda number: None)
    assert_same(run, whole)
    assert len(run.seen) == 6
