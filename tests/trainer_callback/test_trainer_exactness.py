"""A Trainer that is killed and started again does what the uninterrupted one did, to the last bit."""

from __future__ import annotations

import harness
import pytest
from accelerate_runs import assert_resumes, checkpoints, some, train
from trainer_runs import arguments, new_job


def whole_run(tmp_path, **options):
    job = new_job(tmp_path, **options)
    return job, train(job)


@pytest.mark.parametrize(
    ("workers", "persistent"),
    [(0, False), (2, False), pytest.param(2, True, marks=pytest.mark.slow)],
    ids=["0 workers", "2 workers", "2 persistent"],
)
def test_a_run_goes_on_from_each_boundary(tmp_path, workers, persistent):
    job, whole = whole_run(tmp_path, workers=workers, persistent=persistent)
    names = list(checkpoints(job))
    assert len(names) == 24  # before each of 18 steps, where each of 3 epochs has no more batches, and when it is over
    assert_resumes(job, whole, names if not workers else some(names, 5))


EVALUATED = {"eval_strategy": "steps", "eval_steps": 4}
BEST = {
    **EVALUATED, "save_strategy": "steps", "save_steps": 4, "load_best_model_at_end": True,
    "metric_for_best_model": "eval_loss", "greater_is_better": False,
}  # fmt: skip
LOOPS = {
    "windows of 4, the last one shorter": arguments(gradient_accumulation_steps=4),
    "evaluated in the middle": arguments(**EVALUATED),
    "evaluated at first": arguments(**EVALUATED, eval_on_start=True),
    "logged and evaluated by epochs": arguments(logging_strategy="epoch", eval_strategy="epoch"),
    "logged every 4 steps": arguments(logging_steps=4, logging_first_step=True),
    "the best model, two kept": arguments(**BEST, save_total_limit=2),
    "stopped early": {**arguments(**BEST, eval_delay=3), "patience": 1},
    "a plateau": arguments(**EVALUATED, lr_scheduler_type="reduce_lr_on_plateau", metric_for_best_model="loss"),
    "steps instead of epochs": arguments(max_steps=8),
    "half an epoch more": arguments(num_train_epochs=1.5),
    "without the last batch": arguments(dataloader_drop_last=True),
    "told not to skip": arguments(ignore_data_skip=True),
    "told to restore callbacks": arguments(restore_callback_states_from_checkpoint=True),
    "bf16": arguments(bf16=True),
    "fp16": {"scaler": True, "overflows": [0, 3, 4, 9]},
    "fp16, windows of 4": {"scaler": True, "overflows": [0, 3, 4, 9], **arguments(gradient_accumulation_steps=4)},
    "not seedable": arguments(accelerator_config={"use_seedable_sampler": False}),
    "dispatched": arguments(accelerator_config={"dispatch_batches": True}),
    "split batches": arguments(accelerator_config={"split_batches": True}),
    "in order": arguments(train_sampling_strategy="sequential"),
}


SLOW = {
    "evaluated at first", "logged every 4 steps", "half an epoch more", "without the last batch", "in order", "bf16",
    "fp16", "told to restore callbacks", "split batches", "not seedable", "masked words", "grouped by length",
}  # fmt: skip


def some_slow(kinds):
    return [pytest.param(kind, marks=[pytest.mark.slow] if kind in SLOW else []) for kind in kinds]


@pytest.mark.parametrize("kind", some_slow(LOOPS))
def test_loops_of_every_kind_go_on_exactly(tmp_path, kind):
    job, whole = whole_run(tmp_path, **LOOPS[kind])
    assert_resumes(job, whole, some(list(checkpoints(job)), 5))


def test_cuts_inside_a_window_go_on_with_its_gradients(tmp_path):
    job, whole = whole_run(tmp_path, cuts=True, **arguments(gradient_accumulation_steps=4, logging_steps=2))
    names = checkpoints(job)
    assert sum(progress["in_window"] for progress in names.values()) == 3 * (3 + 1)
    assert_resumes(job, whole, [name for name, progress in names.items() if progress["in_window"]][::2])


def test_no_sample_that_was_consumed_is_read_again(tmp_path):
    job, whole = whole_run(tmp_path, **arguments(gradient_accumulation_steps=2, ignore_data_skip=False))
    names = list(checkpoints(job))
    assert_resumes(job, whole, names[3:18:5])
    for number in range(len(names[3:18:5])):
        again = job.but(name=f"again-{number}")
        assert sorted(harness.reads(again)) == sorted(i for step in harness.batches(again) for i in step["ids"])


TEXTS = {
    "masked words": {},
    "masked words, 2 workers": {"workers": 2},
    "grouped by length": arguments(train_sampling_strategy="group_by_length"),
    "grouped by length, seedable or not": arguments(
        train_sampling_strategy="group_by_length", accelerator_config={"use_seedable_sampler": False}
    ),
}


@pytest.mark.parametrize("kind", some_slow(TEXTS))
def test_texts_go_on_exactly(tmp_path, kind):
    job, whole = whole_run(tmp_path, script="texts", epochs=2, **TEXTS[kind])
    names = list(checkpoints(job))
    assert_resumes(job, whole, some(names, 4))
    for number in range(4 if "grouped" not in kind else 0):  # at each start the Trainer asks for the lengths of all
        again = job.but(name=f"again-{number}")
        assert sorted(harness.reads(again)) == sorted(i for step in harness.batches(again) for i in step["ids"])
