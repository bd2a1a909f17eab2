"""Accelerate scripts of many configurations, each killed several times at random moments.

A configuration, its kills and the seeds of its starts follow from one number, so what has failed is run again with
``pytest tests/accelerate_plugin/test_accelerate_sweep.py -k "[7]"``.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
from accelerate_runs import assert_survives_kills, new_job

NUM_RUNS, NUM_KILLS = 16, 4
QUICK = (0, 13)  # the other of them leaves batches out
STYLES = ("plain", "break", "continue", "nested", "nested with break", "in turn", "zip", "alternating", "cycled", "gan")


def configuration(number: int) -> dict[str, Any]:
    """What run ``number`` trains."""
    chance = random.Random(number)
    window = {"num_steps": chance.choice((1, 1, 2, 3)), "sync_with_dataloader": chance.random() < 0.7}
    return {
        "style": chance.choice(STYLES),
        "range": chance.random() < 0.2,
        "window": window,
        "loading": {
            "use_seedable_sampler": chance.random() < 0.4,
            "use_stateful_dataloader": chance.random() < 0.3,
            "dispatch_batches": chance.random() < 0.2,
        },
        "loader": chance.choice(("shuffled", "shuffled", "weighted", "numbered", "own generator")),
        "scaler": chance.random() < 0.3,
        "overflows": [0, 3, 4, 9],
        "held": chance.random() < 0.3,
        "save_steps": chance.choice((None, 1, 2)),
        "keep": chance.choice((1, 2, 3)),
        "settle": False,
    }


@pytest.mark.parametrize(
    "number",
    [pytest.param(number, marks=[] if number in QUICK else [pytest.mark.slow]) for number in range(NUM_RUNS)],
)
def test_a_script_that_is_killed_at_random_moments_ends_as_one_that_is_not(tmp_path, number):
    assert_survives_kills(new_job(tmp_path, **configuration(number)), number, (0, 0, 1, 2, 4), NUM_KILLS)
