"""A script that is killed and started again does what the uninterrupted one did, to the last bit."""

from __future__ import annotations

import harness
import pytest
from accelerate_runs import assert_resumes, checkpoints, new_job, some, train


def whole_run(tmp_path, **options):
    job = new_job(tmp_path, **options)
    return job, train(job)


@pytest.mark.parametrize(
    ("workers", "persistent"),
    [(0, False), (2, False), pytest.param(2, True, marks=pytest.mark.slow)],
    ids=["0 workers", "2 workers", "2 persistent"],
)
def test_a_run_goes_on_from_each_batch_and_each_end_of_an_epoch(tmp_path, workers, persistent):
    job, whole = whole_run(tmp_path, workers=workers, persistent=persistent)
    names = list(checkpoints(job))
    assert len(names) == 22  # at the start, and for each of 3 epochs: behind 6 batches, and when it is over
    assert_resumes(job, whole, names if not workers else some(names, 5))


@pytest.mark.parametrize(
    "workers", [1, pytest.param(4, marks=pytest.mark.slow), pytest.param(0, marks=pytest.mark.slow)]
)
def test_workers_may_change_between_the_runs(tmp_path, workers):
    job, whole = whole_run(tmp_path, workers=2, persistent=True)
    assert_resumes(job, whole, some(list(checkpoints(job)), 4), workers=workers, persistent=False)


# of the checkpoints of a run; each kind of run is cut elsewhere
cut_at = pytest.mark.parametrize("num", [pytest.param(99, id="all", marks=pytest.mark.slow), pytest.param(3, id="3")])

STYLES = {
    "break": {"style": "break"},
    "continue": {"style": "continue"},
    "nested validation": {"style": "nested"},
    "nested validation, shuffled": {"style": "nested", "shuffled validation": True},
    "nested validation left by break": {"style": "nested with break"},
    "nested validation with gradients on": {"style": "nested with gradients"},
    "two loaders in turn": {"style": "in turn"},
    "zip": {"style": "zip"},
    "alternating": {"style": "alternating"},
    "cycled": {"style": "cycled"},
    "cycled and held": {"style": "cycled", "held": True},
    "cycled often": {"style": "cycled", "num_others": 5, "num_samples": 18},
    "loops that train inside of a loop that trains, and behind it": {"style": "inner", "num_others": 8, "epochs": 2},
    "gan": {"style": "gan"},
    "a new loader each epoch": {"style": "new loader"},
    "a fixed number of batches an epoch": {"style": "counted", "held": True},
    "own backward": {"own backward": True},
    "a layer is frozen, another gets a parameter group": {"style": "freezing"},
}


@cut_at
@pytest.mark.parametrize("style", STYLES)
def test_loops_of_every_style_go_on_exactly(tmp_path, style, num):
    job, whole = whole_run(tmp_path, **STYLES[style])
    assert_resumes(job, whole, some(list(checkpoints(job)), max(num, 7) if style == "alternating" else num, style))


def test_nothing_is_saved_while_a_loader_has_given_a_batch_that_was_not_trained_on(tmp_path):
    job, whole = whole_run(tmp_path, style="ahead")
    names = checkpoints(job)
    assert [progress["batch"] for progress in names.values()] == [0, 4, 8, 12]
    assert_resumes(job, whole, names)


WINDOWS = {
    "3": {"window": {"num_steps": 3}},
    "4, not closed by the loader": {"window": {"num_steps": 4, "sync_with_dataloader": False}},
    "3, scheduler as it is": {"window": {"num_steps": 3, "adjust_scheduler": False}},
    "3, alternating": {"window": {"num_steps": 3}, "style": "alternating"},
    "3, nested": {"window": {"num_steps": 3}, "style": "nested"},
    "fp16": {"scaler": True, "overflows": [0, 3, 4, 9]},
    "fp16, 3": {"scaler": True, "overflows": [0, 3, 4, 9], "window": {"num_steps": 3}},
    "bf16": {"precision": "bf16"},
}


@cut_at
@pytest.mark.parametrize("kind", WINDOWS)
def test_windows_and_precisions_go_on_exactly(tmp_path, kind, num):
    job, whole = whole_run(tmp_path, **WINDOWS[kind])
    assert_resumes(job, whole, some(list(checkpoints(job)), num + 1, kind))


OPEN = {
    "3": {"window": {"num_steps": 3}},
    "4, not closed by the loader": {"window": {"num_steps": 4, "sync_with_dataloader": False}},
    "fp16, 3": {"scaler": True, "overflows": [0, 3, 4, 9], "window": {"num_steps": 3}},
}


@pytest.mark.parametrize("kind", [pytest.param(k, marks=[pytest.mark.slow] if k == "3" else []) for k in OPEN])
def test_a_save_inside_a_window_has_its_gradients(tmp_path, kind):
    job, whole = whole_run(tmp_path, epochs=2, **{"saves in windows": True}, **OPEN[kind])
    names = checkpoints(job)
    num_steps = OPEN[kind]["window"]["num_steps"]
    inside = [name for name, progress in names.items() if 0 < progress["batch"] < 5 and progress["batch"] % num_steps]
    assert len(inside) >= 3
    assert_resumes(job, whole, [*inside, *some(list(names)[6:], 3)])


LOADING = {
    "seedable": {"loading": {"use_seedable_sampler": True}},
    "seedable, break": {"loading": {"use_seedable_sampler": True}, "style": "break"},
    "data seed": {"loading": {"use_seedable_sampler": True, "data_seed": 11}},
    "split batches": {"loading": {"split_batches": True}},
    "dispatched": {"loading": {"dispatch_batches": True}},
    "dispatched and split": {"loading": {"dispatch_batches": True, "split_batches": True}},
    "uneven": {"loading": {"even_batches": False}},
    "not blocking": {"loading": {"non_blocking": True}},
    "weighted": {"loader": "weighted"},
    "batch sampler": {"loader": "batches"},
    "numbered batch sampler": {"loader": "numbered"},
    "own generator": {"loader": "own generator"},
    "stateful and dispatched": {"loading": {"use_stateful_dataloader": True, "dispatch_batches": True}},
    "stateful and seedable, break": {
        "loading": {"use_stateful_dataloader": True, "use_seedable_sampler": True},
        "style": "break",
    },
}


@cut_at
@pytest.mark.parametrize("kind", LOADING)
def test_ways_to_load_go_on_exactly(tmp_path, kind, num):
    workers = 2 if kind in ("seedable", "dispatched", "batch sampler") else 0
    job, whole = whole_run(tmp_path, workers=workers, **LOADING[kind])
    assert_resumes(job, whole, some(list(checkpoints(job)), num, kind))


STATEFUL = {"use_stateful_dataloader": True}


@cut_at
@pytest.mark.parametrize(
    ("workers", "persistent"),
    [(0, False), pytest.param(2, False, marks=pytest.mark.slow), (2, True)],
    ids=["0 workers", "2 workers", "2 persistent"],
)
def test_stateful_loaders_go_on_from_batches_and_ends_of_epochs(tmp_path, workers, persistent, num):
    job, whole = whole_run(tmp_path, loading=STATEFUL, workers=workers, persistent=persistent)
    names = checkpoints(job)
    ends = [name for name, progress in names.items() if progress["epoch_batch"] in (0, 6)]
    cut = {*ends[1:3], *some(list(names), num)}
    assert_resumes(job, whole, [name for name in names if name in cut])


def test_a_loader_may_become_stateful_between_the_runs_or_cease_to_be(tmp_path):
    job, whole = whole_run(tmp_path, loading=STATEFUL)
    assert_resumes(job, whole, some(list(checkpoints(job)), 3), options={}, workers=2)


@pytest.mark.parametrize("loading", [{}, STATEFUL], ids=["plain", "stateful"])
def test_no_sample_that_was_consumed_is_read_again(tmp_path, loading):
    job, whole = whole_run(tmp_path, style="plain", loading=loading, workers=2 if loading else 0)
    names = list(checkpoints(job))
    assert_resumes(job, whole, names[4:20:5])
    for number in range(len(names[4:20:5])):
        again = job.but(name=f"again-{number}")
        assert sorted(harness.reads(again)) == sorted(i for step in harness.batches(again) for i in step["ids"])
