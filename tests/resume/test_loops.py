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
    "windows that grow": {"others": ["scheduled windows"]},
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


ENDS = ("accumulation", "an end by steps", "an end by steps at the end of an epoch", "windows that grow", "two loaders")


SLOW = ("an end by steps", "momentum", "weighted sampler", "horizon from two loaders")  # are like others


@pytest.mark.parametrize("where", ["amid an epoch", pytest.param("wherever it is cut", marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", [pytest.param(k, marks=[pytest.mark.slow] if k in SLOW else []) for k in KINDS])
def test_each_kind_of_loop_goes_on_exactly(tmp_path, kind, where):
    whole = first_of(tmp_path, kind, name="reference", directory=str(tmp_path / "reference"))
    reference = whole, train(whole)
    num_batches = sum("batch" in step for step in steps(whole))
    per_epoch = 3 if kind in ("part of an epoch", "an epoch that is left early") else 5
    window = 2 if kind == "accumulation" else 1
    inner = {3, 4} if kind in ("manual optimization", "two loaders of unknown length") else set()
    cuts = {per_epoch + 2} | inner | ({num_batches} if kind in ENDS else set())
    for cut in sorted(cuts if where == "amid an epoch" else cuts | {2, per_epoch, num_batches - 1, num_batches}):
        first = first_of(tmp_path, kind, name=f"first-{cut}", directory=str(tmp_path / f"ckpt-{cut}"), workers=cut % 2)
        done = cut % per_epoch
        at_end = cut == num_batches or (done == 0 and cut > per_epoch)
        # inside a window nothing is saved; the last window of an epoch may be shorter
        saved = cut - done % window if done else cut
        kill_at(first, cut, saved=0 if kind == "windows that grow" else saved, in_epoch_end=at_end)
        second = first.but(name=f"second-{cut}", seed=50 + cut, workers=0)
        assert_tail(reference, train(second), second)


DEEP = {
    "an optimizer that waits for another": ({"module": "gan"}, [3, 4]),
    "a scaler that skips steps": ({"module": "overflowing", "scaler": True}, [1, 4]),
    "weights averaged over epochs": ({"module": "normed", "others": ["swa"]}, [7, 13, 17]),
    "weights averaged over steps": ({"module": "normed", "others": ["ema"]}, [6]),
    "a compiled module": ({"module": "compiled"}, [3]),
}


@pytest.mark.parametrize("kind", DEEP)
def test_what_lies_deep_in_a_loop_goes_on_exactly(tmp_path, kind):
    options, cuts = DEEP[kind]
    first = Job(str(tmp_path), "first", str(tmp_path / "ckpt"), options=options, save_steps=None, keep=99)
    whole = first.but(name="reference", directory=str(tmp_path / "reference"))
    reference = whole, train(whole)
    for cut in cuts:
        killed = first.but(name=f"first-{cut}", directory=str(tmp_path / f"ckpt-{cut}"), workers=cut % 2)
        kill_at(killed, cut)
        second = killed.but(name=f"second-{cut}", seed=50 + cut, workers=0)
        assert_tail(reference, train(second), second)


def test_a_window_of_four_goes_on_from_its_start_wherever_it_is_cut(tmp_path):
    options = {"trainer": {"accumulate_grad_batches": 4, "max_epochs": 2}}
    first = Job(str(tmp_path), "first", str(tmp_path / "ckpt"), num_samples=24, options=options, save_steps=None)
    whole = first.but(name="reference", directory=str(tmp_path / "reference"))
    reference = whole, train(whole)
    for cut in range(1, 9):  # windows of 4 and 2 batches in each epoch
        killed = first.but(name=f"first-{cut}", directory=str(tmp_path / f"ckpt-{cut}"))
        kill_at(killed, cut, saved={4: 4, 5: 4}.get(cut, 0 if cut < 4 else 6))
        second = killed.but(name=f"second-{cut}", seed=50 + cut)
        assert_tail(reference, train(second), second)
