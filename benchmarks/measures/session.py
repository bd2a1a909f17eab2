"""The session: what a step of a Lightning fit costs more between saves.

Directly: each method that the plugin shadows and a step goes through is clocked outside and inside of the shadow, and
so are the callback's own hooks. End to end: whole fits with and without the callback, less what the same resumable
loader costs in a fit of its own. Both in CPU time of the training thread: it waits for nothing here, and a busy
machine does not stretch it.
"""

from __future__ import annotations

import logging
import tempfile
import time
import warnings
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities.combined_loader import CombinedLoader
from torch.utils.data import DataLoader

from lightning_resume import ResumeCallback, SaveEvery
from measures.report import Measure
from measures.seeding import KEY, Empty, make_loader
from measures.timing import Added, run_rotated
from resume_core.capture.loader import ResumableLoader

SECTION = "Session, a step of a Lightning fit between saves"
BOUND_US = 50.0

STEPS = 1200  # short fits, many rounds: the machine drifts
WARM_STEPS = 200  # the state is checked once after step 1, and Lightning's own first steps are slow
ROUNDS, QUICK_ROUNDS = 15, 2
NEVER = SaveEvery(steps=10**9, minutes=10**6, at_start=False)  # both rules are asked each step, none comes true


class Tiny(LightningModule):
    """One parameter: what is left is the loop."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return self.weight.sum()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Clock(Callback):
    """CPU time of the training thread, a step, after the warm ones."""

    def __init__(self) -> None:
        self.step_us = 0.0
        self._start = 0.0

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx == WARM_STEPS:
            self._start = time.thread_time()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx == STEPS - 1:
            self.step_us = (time.thread_time() - self._start) / (STEPS - 1 - WARM_STEPS) * 1e6


class InsideShadow(Callback):
    """Stands before the callback in the Trainer's list: clocks the plain ``on_advance_end``."""

    def __init__(self, boundary: Added) -> None:
        self.boundary = boundary

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        loop = trainer.fit_loop.epoch_loop
        loop.on_advance_end = self.boundary.inside(loop.on_advance_end)


HOOKS = ("on_train_batch_start", "on_before_optimizer_step", "on_train_batch_end")


class OutsideShadow(Callback):
    """Stands behind it: clocks the shadows of ``on_advance_end`` and of the combined loader's ``__next__``."""

    def __init__(self, boundary: Added, fetch: Added | None = None) -> None:
        self.boundary, self.fetch = boundary, fetch

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        loop = trainer.fit_loop.epoch_loop
        loop.on_advance_end = self.boundary.outside(loop.on_advance_end)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        if self.fetch is not None:
            shadowed = type(trainer.fit_loop._combined_loader)  # the plugin's own class, made for this one loader
            shadowed.__next__ = self.fetch.outside(shadowed.__next__)


def fit(module: LightningModule, loader: DataLoader[Any], callbacks: list[Callback]) -> None:
    """One epoch of nothing but training."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = Trainer(max_epochs=1, accelerator="cpu", enable_model_summary=False, callbacks=callbacks, **quiet)
        trainer.fit(module, loader)


def _loader(*, resumable: bool = False) -> DataLoader[Any]:
    loader = make_loader(Empty(STEPS), batch_size=1, num_workers=0)
    if resumable:
        ResumableLoader(loader, key=KEY, slot=0)
    return loader


def _fit_plain() -> float:
    clock = Clock()
    fit(Tiny(), _loader(), [clock])
    return clock.step_us


def _fit_seeded() -> float:
    clock = Clock()
    fit(Tiny(), _loader(resumable=True), [clock])
    return clock.step_us


def _fit_resumable() -> float:
    clock = Clock()
    with tempfile.TemporaryDirectory() as directory:
        fit(Tiny(), _loader(), [ResumeCallback(directory, save=NEVER), clock])
    return clock.step_us


def _direct_us() -> float:
    """Microseconds a step inside of the shadows."""
    boundary, fetch, *hooks = clocks = [Added(time.thread_time) for _ in range(2 + len(HOOKS))]
    with (
        tempfile.TemporaryDirectory() as directory,
        mock.patch.object(CombinedLoader, "__next__", fetch.inside(CombinedLoader.__next__)),
    ):
        resume = ResumeCallback(directory, save=NEVER)
        for name, clock in zip(HOOKS, hooks, strict=True):
            setattr(resume, name, clock.outside(getattr(resume, name)))
        fit(Tiny(), _loader(), [InsideShadow(boundary), resume, OutsideShadow(boundary, fetch)])
    return sum(added.mean_s(WARM_STEPS) for added in clocks) * 1e6


VARIANTS: dict[str, Callable[[], float]] = {
    "plain": _fit_plain,
    "seeded": _fit_seeded,
    "resumable": _fit_resumable,
    "direct": _direct_us,
}


def measure(*, quick: bool) -> list[Measure]:
    _fit_resumable()  # warms imports
    found = [run_rotated(VARIANTS, number) for number in range(QUICK_ROUNDS if quick else ROUNDS)]
    session = [r["resumable"] - r["seeded"] for r in found]
    return [
        Measure(SECTION, "inside the shadows and hooks (direct)", "µs", [r["direct"] for r in found], BOUND_US),
        # a difference of whole fits: it agrees with the row above, but its noise is larger than the bound
        Measure(SECTION, "fit with the callback - fit with the same seeded loader", "µs", session),
        Measure(SECTION, "fit with the callback - plain fit", "µs", [r["resumable"] - r["plain"] for r in found]),
        Measure(SECTION, "a step of the plain fit", "µs", [r["plain"] for r in found]),
    ]
