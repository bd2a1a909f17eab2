"""Evidence: what watching costs at each step, and recording in those behind a save.

Directly: what a plugin and the session call at a step, without the training between, for the parameters of a small
convolutional net and a batch of 64 small images. In wall time, in one thread.
"""

from __future__ import annotations

import itertools
import logging
import time

import torch

from measures.report import Measure
from resume_core import Check, Watch
from resume_core.evidence import Evidence
from resume_core.ranks import Ranks
from resume_core.state import Progress, Vitals

SECTION = "Evidence, a step"
STEP_US = 50_000.0  # what a step of training takes, that shares are given of
SHARE_BOUND = 1.0  # percent
SAVE_EVERY = 100  # steps
NUM_STEPS, QUICK_STEPS = 2_000, 300
ROUNDS, QUICK_ROUNDS = 9, 2


def _net() -> torch.nn.Module:
    widths = (3, 32, 64, 128, 256)
    layers = [torch.nn.Conv2d(a, b, 3) for a, b in itertools.pairwise(widths)]
    return torch.nn.Sequential(*layers, torch.nn.Linear(256, 100))


class Steps:
    """Steps of a run that saves now and then, as the evidence sees them."""

    def __init__(self) -> None:
        self.optimizer = torch.optim.SGD(_net().parameters(), lr=0.1)
        self.parameters = {str(n): p for n, p in enumerate(self.optimizer.param_groups[0]["params"])}
        for parameter in self.parameters.values():
            parameter.grad = torch.ones_like(parameter)
        self.batch, self.loss = torch.randn(64, 3, 32, 32), torch.tensor(1.5)
        where = {"loader": 0, "pass": 0, "num_batches": 1, "position": 64, "ids": [*range(64)], "num_samples": 64}
        vitals = Vitals(self.parameters, [self.optimizer], None, [where])
        self.evidence = Evidence(Check(), Watch(), Ranks(), logging.getLogger("evidence"), lambda: vitals)
        self.evidence._recorder.open(lambda saves: None)
        self.evidence.begin(Progress())

    def run(self, num_steps: int) -> tuple[float, float, float]:
        """Microseconds of a step that is watched alone, of one that is recorded, and of all on average."""
        alone, recorded = [], []
        for step in range(1, num_steps + 1):
            if step % SAVE_EVERY == 0:
                self.evidence.saved(f"step-{step:09d}", Progress(step=step - 1, batch=step - 1))
            observer, start = self.evidence.observer, time.perf_counter()
            is_recorded = observer.records
            observer.batch(self.batch)
            observer.loss(self.loss)
            observer.gradients(self.optimizer)
            self.evidence.boundary(Progress(step=step, batch=step))
            (recorded if is_recorded else alone).append(time.perf_counter() - start)
        mean = (sum(alone) + sum(recorded)) / num_steps
        return sorted(alone)[len(alone) // 2] * 1e6, sorted(recorded)[len(recorded) // 2] * 1e6, mean * 1e6


def measure(*, quick: bool) -> list[Measure]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        found = [Steps().run(QUICK_STEPS if quick else NUM_STEPS) for _ in range(QUICK_ROUNDS if quick else ROUNDS)]
    finally:
        torch.set_num_threads(threads)
    alone, recorded, mean = zip(*found, strict=True)
    share = [100 * value / STEP_US for value in mean]
    return [
        Measure(SECTION, "watched alone", "µs", list(alone)),
        Measure(SECTION, "recorded, as the three behind each save are", "µs", list(recorded)),
        Measure(SECTION, "recorded, share of a step of 50 ms", "%", [100 * v / STEP_US for v in recorded], SHARE_BOUND),
        Measure(SECTION, f"a save every {SAVE_EVERY} steps, share of a step of 50 ms", "%", share, SHARE_BOUND),
    ]
