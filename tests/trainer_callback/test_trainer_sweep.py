"""Runs with a Trainer of many configurations, each killed several times at random moments.

A configuration, its kills and the seeds of its starts follow from one number, so what has failed is run again with
``pytest tests/trainer_callback/test_trainer_sweep.py -k "[7]"``.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
from accelerate_runs import assert_survives_kills
from trainer_runs import new_job

NUM_RUNS, NUM_KILLS, NUM_QUICK = 8, 4, 2


def configuration(number: int) -> dict[str, Any]:
    """What run ``number`` trains."""
    chance = random.Random(number)
    chosen = {
        "gradient_accumulation_steps": chance.choice((1, 1, 2, 4)),
        "eval_strategy": chance.choice(("no", "steps", "epoch")),
        "logging_steps": chance.choice((1, 3)),
        "dataloader_drop_last": chance.random() < 0.3,
        "num_train_epochs": chance.choice((3, 2.5)),
    }
    if chosen["eval_strategy"] == "steps":
        chosen |= {"eval_steps": 2, "save_strategy": "steps", "save_steps": 2, "load_best_model_at_end": True,
                   "save_total_limit": 2}  # fmt: skip
    return {
        "arguments": chosen,
        "scaler": chance.random() < 0.3,
        "overflows": [0, 3, 4, 9],
        "save_steps": chance.choice((None, 1, 2)),
        "keep": chance.choice((1, 2, 3)),
        "settle": False,
    }


@pytest.mark.parametrize(
    "number", [pytest.param(n, marks=[] if n < NUM_QUICK else [pytest.mark.slow]) for n in range(NUM_RUNS)]
)
def test_a_run_that_is_killed_at_random_moments_ends_as_one_that_is_not(tmp_path, number):
    assert_survives_kills(new_job(tmp_path, **configuration(number)), number, (0, 0, 1, 2), NUM_KILLS)
