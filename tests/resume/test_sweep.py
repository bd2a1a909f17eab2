"""Runs of many configurations, each killed several times at random moments.

A configuration, its kills and the seeds of its starts follow from one number, so what has failed is run again with
``pytest "tests/resume/test_sweep.py" -k "[17]"``; only the moment of a kill within a batch depends on the machine.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
from harness import Job, assert_same_run, committed, kill_somewhere, train

NUM_RUNS, NUM_KILLS = 45, 5  # some runs end before their last kill

SIZED = ("shuffled", "weighted", "nested", "two", "batches")
UNSIZED = ("numbered", "unsized", "two unsized")
EVEN = SIZED[:-1]  # no batch of one sample, which a batch norm refuses


def trainer_arguments(chance: random.Random, loader: str, net: str) -> dict[str, Any]:
    """Arguments of the Trainer that go with each other."""
    arguments: dict[str, Any] = {"max_epochs": chance.choice((4, 5))}
    if loader in SIZED:
        arguments["limit_train_batches"] = chance.choice((1.0, 1.0, 4, 0.8))
        arguments["val_check_interval"] = chance.choice((1.0, 0.5, 2))
    arguments["limit_val_batches"] = chance.choice((1.0, 1, 0))
    arguments["check_val_every_n_epoch"] = chance.choice((1, 1, 2))
    arguments["reload_dataloaders_every_n_epochs"] = chance.choice((0, 0, 1, 2))
    if net != "gan":  # which steps by itself
        arguments["accumulate_grad_batches"] = chance.choice((1, 1, 2, 3))
        arguments["gradient_clip_val"] = chance.choice((None, 0.1))
    return arguments


def configuration(number: int) -> dict[str, Any]:
    """What run ``number`` trains, as fields of a `Job`; without how it is interrupted."""
    chance = random.Random(number)
    net = chance.choice(("plain", "plain", "gan", "normed", "overflowing"))
    loader = chance.choice(EVEN if net == "normed" else SIZED + UNSIZED)
    options: dict[str, Any] = {"loader": loader, "module": net, "trainer": trainer_arguments(chance, loader, net)}
    if net == "normed":
        options["others"] = [chance.choice(("swa", "ema"))]
    options["scaler"] = net == "overflowing"
    if net == "plain":
        options["optimizer"] = chance.choice(("AdamW", "SGD", "RMSprop", "NAdam"))
    return {
        "options": options,
        "num_samples": chance.choice((20, 36)),
        "save_steps": chance.choice((None, None, 1, 2)),
        "keep": chance.choice((1, 2, 3)),
    }


@pytest.mark.slow
@pytest.mark.parametrize("number", range(NUM_RUNS))
def test_a_run_that_is_killed_at_random_moments_ends_as_one_that_is_not(tmp_path, number):
    chance = random.Random(1000 + number)
    first = Job(str(tmp_path), "start-0", str(tmp_path / "ckpt"), **configuration(number))
    print(f"run {number} of the sweep: {first}")
    whole = first.but(name="whole", directory=str(tmp_path / "whole"))
    reference = whole, train(whole)
    jobs, num_kills = [], 0
    for place in range(NUM_KILLS):
        workers = chance.choice((0, 0, 1, 2))
        job = first.but(
            name=f"start-{place}",
            seed=100 * (place + 1) + number if committed(first) else first.seed,  # without a save the run begins anew
            workers=workers,
            persistent=workers > 0 and chance.random() < 0.5,
            slow_s=0.02,
            settle=chance.random() < 0.5,
        )
        jobs.append(job)
        if not kill_somewhere(job, chance.choice((0, 1, 2, 3)), chance.random() * 0.15):
            break
        num_kills += 1
    last = first.but(name="last", seed=99 if committed(first) else first.seed)
    assert_same_run(reference, train(last), *jobs, last)
    print(f"{num_kills} kills")
