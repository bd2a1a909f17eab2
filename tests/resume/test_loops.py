"""Kinds of training loops and loaders, each killed at some of its batches."""

from __future__ import annotations

import pytest
from harness import Job, assert_tail, kill_at, steps, train

KINDS = {
    "accumulation": {"trainer": {"accumulate_grad_batches": 2}},
    "manual optimization": {"manual": True},
    "validation in between": {"trainer": {"val_check_interval": 2}},
    "validation every other epoch": {"trainer": {"check_val_every_n_epoch": 2}},
    "no validation": {"trainer": {"limit_val_batches": 0}},
    "an end by steps": {"trainer": {"max_steps": 12}},
    "an end by steps at the end of an epoch": {"trainer": {"max_steps": 10}},
    "part of an epoch": {"trainer": {"limit_train_batches": 3}},
    "clipping": {"trainer": {"gradient_clip_val": 0.1}},
    "own batch sampler": {"loader": "batches"},
    "own batch sampler with a counter": {"loader": "numbered"},
    "an epoch that is left early": {"leave_at": 3},
    "windows that grow": {"scheduled_windows": True},
    "gradients of zeros": {"zeros": True},
    "a generator of the module's own": {"noise": True},
    "unknown length": {"loader": "unsized"},
    "two loaders of unknown length": {"loader": "two unsized"},
    "weighted sampler": {"loader": "weighted"},
    "two loaders": {"loader": "two"},
    "momentum": {"optimizer": "SGD"},
    "horizon from the loaders": {"estimated": True},
    "horizon from two loaders": {"estimated": True, "loader": "two"},
}


def first_of(tmp_path, kind, **changes):
    every = None if kind == "manual optimization" else 1  # its steps fall on every other batch
    return Job(str(tmp_path), "first", str(tmp_path / "ckpt"), options=KINDS[kind], save_steps=every, keep=99).but(
        **changes
    )


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_loop_goes_on_exactly(tmp_path, kind):
    whole = first_of(tmp_path, kind, name="reference", directory=str(tmp_path / "reference"))
    reference = whole, train(whole)
    num_batches = sum("batch" in step for step in steps(whole))
    per_epoch = 3 if kind in ("part of an epoch", "an epoch that is left early") else 5
    window = 2 if kind == "accumulation" else 1
    inner = {3, 4} if kind in ("manual optimization", "two loaders of unknown length") else set()
    for cut in sorted({2, per_epoch, per_epoch + 2, num_batches - 1, num_batches} | inner):
        first = first_of(tmp_path, kind, name=f"first-{cut}", directory=str(tmp_path / f"ckpt-{cut}"), workers=cut % 2)
        done = cut % per_epoch
        at_end = cut == num_batches or (done == 0 and cut > per_epoch)
        # inside a window nothing is saved; the last window of an epoch may be shorter
        saved = cut - done % window if done else cut
        kill_at(first, cut, saved=0 if kind == "windows that grow" else saved, in_epoch_end=at_end)
        second = first.but(name=f"second-{cut}", seed=50 + cut, workers=0)
        assert_tail(reference, train(second), second)
