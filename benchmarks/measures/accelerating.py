"""Accelerate: what a batch and a step of a loop cost more with the plugin, between saves.

The data: epochs over a prepared loader, in a run and without a plugin; that a batch is asked for is a boundary, which
is in it. The session, directly: what the plugin puts around a loader's iterator and ``backward``, and hangs on the
optimizer, is clocked outside and inside. End to end: whole loops, less what the same resumable loader costs in one of
its own. All in CPU time: nothing is waited for.
"""

from __future__ import annotations

import logging
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from accelerate import Accelerator

from accelerate_resume import ResumePlugin, SaveEvery
from measures.report import Measure
from measures.seeding import BATCH_BOUND_US, EPOCH_SAMPLES, KEY, SAMPLE_BOUND_US, Empty, Epoch, make_loader, solved
from measures.timing import Added, run_rotated
from resume_core.capture.loader import ResumableLoader

DATA = "Accelerate: seeding and order, a prepared loader in a run against the same without a plugin"
SESSION = "Accelerate: session, a step of a loop between saves"
BOUND_US = 50.0
BOTH_US = BATCH_BOUND_US + BOUND_US  # a loader of a run asks the session at each batch: that is the boundary of a step

STEPS = 1200  # short loops, many rounds: the machine drifts
WARM_STEPS = 200  # the state is checked once after step 1
ROUNDS, QUICK_ROUNDS = 15, 2
EPOCH_ROUNDS, EPOCH_REPEATS = 9, 5
NEVER = SaveEvery(steps=10**9, minutes=10**6, at_start=False)  # both rules are asked each step, none comes true


def attached(accelerator: Accelerator, directory: str) -> ResumePlugin:
    logging.getLogger("accelerate_resume").setLevel(logging.ERROR)
    return ResumePlugin(directory, save=NEVER).attach(accelerator)


def _epochs(directory: str, *, batch_size: int, num_workers: int) -> tuple[Epoch, Epoch]:
    """Of a loader that is prepared without a plugin, and in a run."""

    def make() -> Any:
        return make_loader(Empty(EPOCH_SAMPLES[batch_size]), batch_size=batch_size, num_workers=num_workers)

    plain = Accelerator(cpu=True).prepare(make())
    accelerator = Accelerator(cpu=True)
    plugin = attached(accelerator, directory)
    ours = accelerator.prepare(make())
    plugin.restore()
    return Epoch(plain), Epoch(ours)


class Loop:
    """One epoch of nothing but training.

    Args:
        directory: of the plugin; None: without one.
        is_seeded: whether the loader is resumable without a plugin.
        clocks: of the loader's iterator, of ``backward``, and of the optimizer's hooks before and after a step.
    """

    def __init__(
        self, directory: str | None = None, *, is_seeded: bool = False, clocks: Sequence[Added] | None = None
    ) -> None:
        accelerator = self.accelerator = Accelerator(cpu=True)
        if clocks is not None:
            accelerator.backward = clocks[1].inside(accelerator.backward)
        self.plugin = None if directory is None else attached(accelerator, directory)
        if clocks is not None:
            accelerator.backward = clocks[1].outside(accelerator.backward)
        module = torch.nn.Linear(1, 1, bias=False)  # one parameter: what is left is the loop
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        loader = make_loader(Empty(STEPS), batch_size=1, num_workers=0)
        self.module, self.optimizer, self.loader = accelerator.prepare(module, optimizer, loader)
        if is_seeded:
            ResumableLoader(self.loader.base_dataloader, key=KEY, slot=0)
        if clocks is not None:
            for clock, hooks in zip(
                clocks[2:], (optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks), strict=True
            ):
                hooks.update({number: clock.outside(hook) for number, hook in hooks.items()})

    def __call__(self, iterate: Callable[[Any], Iterator[Any]] = iter) -> float:
        """CPU microseconds of the training thread a step, after the warm ones."""
        weight, start = self.module.weight, 0.0
        for _ in range(1) if self.plugin is None else self.plugin.epochs(1):
            for number, _batch in enumerate(iterate(self.loader)):
                if number == WARM_STEPS:
                    start = time.thread_time()
                with self.accelerator.accumulate(self.module):
                    self.accelerator.backward(weight.sum())
                    self.optimizer.step()
                    self.optimizer.zero_grad()
                if number == STEPS - 1:
                    spent_s = time.thread_time() - start
        return spent_s / (STEPS - WARM_STEPS) * 1e6


def _in_run(work: Callable[[str], float]) -> float:
    with tempfile.TemporaryDirectory() as directory:
        return work(directory)


def _direct_us(directory: str) -> float:
    """Microseconds a step inside of what the plugin adds."""
    fetch, *others = clocks = [Added(time.thread_time) for _ in range(4)]

    def clocked(loader: Any) -> Iterator[Any]:
        iterator = iter(loader)
        iterator.fetch = fetch.inside(iterator.fetch)
        following = fetch.outside(iterator.__next__)
        while True:
            try:
                yield following()
            except StopIteration:
                return

    Loop(directory, clocks=clocks)(clocked)
    return sum(added.mean_s(WARM_STEPS) for added in (fetch, *others)) * 1e6


VARIANTS: dict[str, Callable[[], float]] = {
    "plain": lambda: Loop()(),
    "seeded": lambda: Loop(is_seeded=True)(),
    "resumable": lambda: _in_run(lambda directory: Loop(directory)()),
    "direct": lambda: _in_run(_direct_us),
}


def _measure_data(num_workers: int, *, quick: bool) -> list[Measure]:
    with tempfile.TemporaryDirectory() as directory:
        pairs = {
            size: _epochs(f"{directory}/{size}", batch_size=size, num_workers=num_workers) for size in EPOCH_SAMPLES
        }
        found = [solved(pairs, repeats=1 if quick else EPOCH_REPEATS) for _ in range(2 if quick else EPOCH_ROUNDS)]
    samples, batches = zip(*found, strict=True)
    return [
        Measure(DATA, f"extra a sample, empty dataset, {num_workers} workers", "µs", [*samples], SAMPLE_BOUND_US),
        Measure(DATA, f"extra a batch and its boundary, {num_workers} workers", "µs", [*batches], BOTH_US),
    ]


def measure(*, quick: bool) -> list[Measure]:
    data = [row for workers in (0, 2) for row in _measure_data(workers, quick=quick)]
    VARIANTS["resumable"]()  # warms imports
    found = [run_rotated(VARIANTS, number) for number in range(QUICK_ROUNDS if quick else ROUNDS)]
    session = [r["resumable"] - r["seeded"] for r in found]
    return [
        *data,
        Measure(SESSION, "inside of what the plugin adds (direct)", "µs", [r["direct"] for r in found], BOUND_US),
        Measure(SESSION, "loop with the plugin - loop with the same seeded loader", "µs", session),
        Measure(SESSION, "loop with the plugin - plain loop", "µs", [r["resumable"] - r["plain"] for r in found]),
        Measure(SESSION, "a step of the plain loop", "µs", [r["plain"] for r in found]),
    ]
