"""What the demo counts and compares, on runs made up by hand."""

from __future__ import annotations

import dataclasses
import math

import pytest

from resume_core.cli.demo.compare import (
    Run,
    Start,
    Step,
    compare,
    coverage,
    done_again,
    effective,
    parse_lines,
    read_start,
)

NUM_BATCHES, NUM_SAMPLES, NUM_EPOCHS = 4, 8, 2


def step(number, **changes):
    epoch, place = divmod(number - 1, NUM_BATCHES)
    ids = (2 * place, 2 * place + 1)
    plain = Step(number, epoch, place, ids, inputs=f"inputs {number}", rate=1 / number, loss=2 / number)
    return dataclasses.replace(plain, **changes)


def start(first, last, seed=7, **changes):
    steps = tuple(step(number, **changes) for number in range(first, last + 1))
    return Start(seed, first - 1, NUM_BATCHES, NUM_SAMPLES, steps)


def run(*starts, **changes):
    plain = Run(starts or (start(1, 8),), parameters="p" * 64, optimizer="o" * 64, accuracy=0.5)
    return dataclasses.replace(plain, **changes)


def numbers(steps):
    return [each.step for each in steps]


def row(rows, name):
    return next(each for each in rows if each.name == name)


def differences(reference, interrupted):
    return [each.name for each in compare(reference, interrupted) if each.equal is False]


def test_what_was_trained_after_the_last_save_does_not_count_and_was_done_again():
    starts = [start(1, 3), start(3, 6), start(5, 8)]
    assert numbers(effective(starts)) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert numbers(done_again(starts)) == [3, 5, 6]


def test_a_start_that_goes_back_behind_the_one_before_it_takes_that_ones_steps_away_too():
    starts = [start(1, 5), start(5, 7), start(3, 8)]
    assert numbers(effective(starts)) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert numbers(done_again(starts)) == [3, 4, 5, 5, 6, 7]


def test_a_run_without_a_kill_has_nothing_done_again():
    assert done_again([start(1, 8)]) == []


def test_each_sample_once_an_epoch_is_neither_repeated_nor_missed():
    assert coverage(start(1, 8).steps, NUM_SAMPLES, NUM_EPOCHS) == (0, 0)


def test_the_same_sample_in_another_epoch_is_no_repetition():
    assert coverage([step(1), step(5)], num_samples=2, num_epochs=2) == (0, 0)


def test_repeated_and_missed_samples_are_counted_within_their_epoch():
    steps = [step(1), step(2, ids=(0, 1)), step(3), step(4, ids=(1, 7))]
    repeated, missed = coverage(steps, NUM_SAMPLES, 1)
    assert repeated == 3  # 0 once more, 1 twice more
    assert missed == 3  # 2, 3 and 6


def test_an_epoch_that_was_never_trained_is_missed():
    assert coverage(start(1, 4).steps, NUM_SAMPLES, NUM_EPOCHS) == (0, NUM_SAMPLES)


def test_an_exact_resume_differs_in_nothing():
    interrupted = run(start(1, 3), start(3, 8, seed=1007))
    assert differences(run(), interrupted) == []
    rows = compare(run(), interrupted)
    assert row(rows, "batches lost, trained again").right == "1"
    assert row(rows, "global seed of each start").right == "7, 1007"
    assert row(rows, "loss").right == "9 of 9 steps"
    assert row(rows, "loss at step 3, after kill 1") == type(rows[0])(
        "loss at step 3, after kill 1", "0.666666667", "0.666666667", True
    )


def test_seeds_and_lost_batches_are_shown_but_not_judged():
    rows = compare(run(), run(start(1, 3), start(3, 8, seed=1007)))
    assert [each.name for each in rows if each.equal is None] == [
        "global seed of each start",
        "batches lost, trained again",
    ]


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"inputs": "other"}, "augmented inputs"),
        ({"rate": 0.5000000000000001}, "learning rate"),
        ({"loss": 0.123}, "loss"),
        ({"ids": (3, 2)}, "order of the samples"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_one_step_that_differs_in_one_thing_is_found(change, name):
    resumed = start(3, 8)
    resumed = dataclasses.replace(resumed, steps=(*resumed.steps[:3], step(6, **change), *resumed.steps[4:]))
    interrupted = run(start(1, 3), resumed)
    assert differences(run(), interrupted) == [name]
    assert row(compare(run(), interrupted), name).right == "8 of 9 steps"


def test_a_difference_in_a_batch_that_was_lost_later_is_found_too():
    lost = start(1, 3)
    lost = dataclasses.replace(lost, steps=(*lost.steps[:2], step(3, loss=0.1)))
    assert differences(run(), run(lost, start(3, 8))) == ["loss"]


@pytest.mark.parametrize("last", [7, 9], ids=["one too few", "one too many"])
def test_another_number_of_steps_is_found(last):
    assert "loss" in differences(run(), run(start(1, 3), start(3, last)))


def test_the_first_loss_after_a_kill_is_shown_beside_the_uninterrupted_one():
    interrupted = run(start(1, 3), start(3, 8, loss=9.0))
    found = row(compare(run(), interrupted), "loss at step 3, after kill 1")
    assert (found.left, found.right, found.equal) == ("0.666666667", "9", False)


def test_a_loss_at_a_step_that_the_other_run_never_made_is_no_crash():
    found = row(compare(run(), run(start(1, 8), start(9, 10))), "loss at step 9, after kill 1")
    assert (found.left, found.equal) == ("none", False)


def test_repetition_in_both_runs_is_not_called_right():
    broken = run(start(1, 8, ids=(0, 1)))
    assert {"samples repeated in an epoch", "samples missed in an epoch"} <= set(differences(broken, broken))


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"parameters": "p" * 63 + "q"}, "final parameters (SHA-256)"),
        ({"optimizer": "o" * 63 + "q"}, "final optimizer state"),
        ({"accuracy": math.nextafter(0.5, 1)}, "accuracy on held-out data"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_ends_are_compared_in_full_however_short_they_are_shown(change, name):
    assert differences(run(), run(**change)) == [name]


def test_a_line_that_a_kill_cut_short_is_left_out():
    assert parse_lines('{"a": 1}\n{"a": 2}\n{"a"') == [{"a": 1}, {"a": 2}]
    assert parse_lines('{"a"') == []
    assert parse_lines("") == []


def test_a_start_is_read_from_its_lines():
    expected = start(3, 4, seed=5)
    lines = [
        {"seed": 5, "begins_at": 2, "num_batches": NUM_BATCHES, "num_samples": NUM_SAMPLES},
        *({**dataclasses.asdict(each), "ids": list(each.ids)} for each in expected.steps),
    ]
    assert read_start(lines) == expected


def test_a_start_that_wrote_nothing_is_an_error():
    with pytest.raises(ValueError, match="wrote nothing"):
        read_start([])
