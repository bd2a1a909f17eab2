"""Stands where the trainings of the demo stand: trains nothing, but writes, saves and can be killed in the same way.

FAKE in the environment makes it misbehave: ``forget`` goes on with other samples after a kill, ``crash`` fails when it
is started again, ``hang`` never trains, ``hurry`` never saves, ``silent`` ends without a word.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

NUM_BATCHES, NUM_SAMPLES = 100, 200


def batch(step: int, shift: int) -> dict:
    epoch, place = divmod(step - 1, NUM_BATCHES)
    first = (2 * place + shift) % NUM_SAMPLES
    ids = [first, (first + 1) % NUM_SAMPLES]
    facts = {"step": step, "epoch": epoch, "batch": place, "ids": ids, "inputs": f"{epoch}-{ids}"}
    return {**facts, "rate": 1 / step, "loss": 1 / (1 + step + shift)}


def save(job: dict, step: int) -> None:
    if job["plugin"]:
        path = Path("checkpoints", "attempt-0001-aaaa", f"step-{step:09d}", "manifest.json")
    else:
        path = Path("checkpoints", f"step={step}.ckpt")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()


def newest() -> int:
    steps = [int(path.parent.name[5:]) for path in Path("checkpoints").glob("*/*/manifest.json")]
    return max([0, *steps, *(int(path.stem[5:]) for path in Path("checkpoints").glob("*.ckpt"))])


def train(job: dict, fault: str) -> None:
    begins_at = newest()
    if fault == "crash" and begins_at:
        raise RuntimeError("the fake training fails on purpose")
    with open(f"{job['name']}.jsonl", "a", buffering=1) as out:
        begin = {"begins_at": begins_at, "num_batches": NUM_BATCHES, "num_samples": NUM_SAMPLES, "seed": job["seed"]}
        print(json.dumps(begin), file=out)
        shift = 2 if fault == "forget" and begins_at else 0
        for step in range(begins_at + 1, job["epochs"] * NUM_BATCHES + 1):
            print(json.dumps(batch(step, shift)), file=out)
            time.sleep(0.004)
            if step % job["save_steps"] == 0 and fault != "hurry":
                save(job, step)
    end = {"parameters": "f00d" * 16 + str(shift), "optimizer": "beef" * 16, "accuracy": 0.9}
    Path(f"{job['name']}.json").write_text(json.dumps(end))


if __name__ == "__main__":
    fault = os.environ.get("FAKE", "")
    if fault == "hang":
        time.sleep(600)
    if fault != "silent":
        train(json.loads(sys.argv[1]), fault)
