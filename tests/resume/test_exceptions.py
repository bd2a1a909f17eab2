"""Runs that an exception ends: where nothing of the next batch was begun, the next start goes on right there."""

from __future__ import annotations

import harness
import pytest
import trainer_runs
from harness import batches
from unscheduled import accelerate, lightning, trainer

WINDOWS = {
    lightning: {"options": {"trainer": {"accumulate_grad_batches": 2}}},
    accelerate: {"window": {"num_steps": 2}},
    trainer: trainer_runs.arguments(gradient_accumulation_steps=2),
}


def broken(whole, at, tmp_path):
    """A start in which the first sample of a batch of the first epoch cannot be read."""
    sample = batches(whole)[at]["ids"][0]
    options = {**whole.options, "lost_sample": sample}
    return whole.but(name="broken", directory=str(tmp_path / "broken"), options=options, save_steps=10**6)


@pytest.mark.parametrize("framework", list(WINDOWS))
@pytest.mark.parametrize(("workers", "windows"), [(2, False), pytest.param(0, True, marks=pytest.mark.slow)])
def test_a_sample_that_cannot_be_read_costs_no_batch(tmp_path, framework, workers, windows):
    whole, start, train = framework(tmp_path, workers=workers, **(WINDOWS[framework] if windows else {}))
    end = train(whole)
    ahead = framework is not lightning  # Accelerate's loaders fetch one batch ahead, and the Trainer a window
    first = broken(whole, 3 + ahead, tmp_path)
    process = start(first)
    process.join(harness.DEADLINE_S)
    assert process.exitcode == 1
    assert "sample" in first.path("error").read_text()
    assert len(batches(first)) == (2 if windows and framework is trainer else 3)
    again = first.but(name="again", seed=99, options=whole.options)
    assert train(again) == end
    assert batches(first) + batches(again) == batches(whole)
    assert "saved behind batch" in first.path("log").read_text()
