"""Saving: how long training waits for a save of 1 GiB, against a warm copy of the same tensors.

Measured twice: the staging alone, and everything that the boundary of a Lightning fit does when it saves.
"""

from __future__ import annotations

import gc
import tempfile
import threading
import time
from collections.abc import Sequence
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule

from lightning_resume import Keep, ResumeCallback, SaveEvery
from measures.report import Measure
from measures.seeding import Empty, make_loader
from measures.session import InsideShadow, OutsideShadow, fit
from measures.timing import Added, timed
from resume_core.checkpointer import Checkpointer
from resume_core.state import State
from resume_core.storage import open_store

SECTION = "Blocking time of a save of 1 GiB in 600 tensors, against a warm torch._foreach_copy_ of them"
BOUND = 1.3

NUM_LAYERS = 75  # each a weight and a bias, each with two moments and a step count: 600 tensors
WIDTH, QUICK_WIDTH = 1092, 273  # 75 square float32 weights and their moments: 1 GiB, 64 MiB
ROUNDS, QUICK_ROUNDS = 15, 3
FIT_ROUNDS = 7
FIRST_SAVES = 2  # of a fit: without the moments, then with them
WRITER = "exact-resume-writer"  # the name of the thread that writes


def _shapes(width: int) -> list[tuple[int, ...]]:
    return [(width, width), (width,)] * NUM_LAYERS


class Copy:
    """The yardstick: ``sources`` into memory of their own that was written to before."""

    def __init__(self, sources: Sequence[torch.Tensor]) -> None:
        self.sources = list(sources)
        self.targets = [torch.zeros_like(source).fill_(1) for source in self.sources]

    def __call__(self) -> None:
        with torch.no_grad():
            torch._foreach_copy_(self.targets, self.sources)


def _state(parameters: Sequence[torch.Tensor]) -> dict[str, Any]:
    """A model and its Adam state, as a framework gives it."""
    moments = {
        place: {"step": torch.tensor(1.0), "exp_avg": torch.rand_like(p), "exp_avg_sq": torch.rand_like(p)}
        for place, p in enumerate(parameters)
    }
    model = {f"layers.{place // 2}.{('weight', 'bias')[place % 2]}": p for place, p in enumerate(parameters)}
    group = {"lr": 1e-3, "betas": (0.9, 0.999), "params": list(moments)}
    return {"model": model, "training": {"optimizer": {"state": moments, "param_groups": [group]}}, "rank": {}}


def _tensors(state: dict[str, Any]) -> list[torch.Tensor]:
    moments = state["training"]["optimizer"]["state"].values()
    return [*state["model"].values(), *(tensor for entry in moments for tensor in entry.values())]


def _measure_staging(width: int, *, rounds: int) -> list[Measure]:
    state = _state([torch.rand(shape) for shape in _shapes(width)])
    copy = Copy(_tensors(state))
    checkpointer = Checkpointer(open_store("memory://overhead", {}))

    def stage() -> None:
        checkpointer.stage(State(**state), {})  # not written: each may overwrite the one before

    copy()
    first_s = timed(stage)
    pairs = [(timed(copy), timed(stage)) for _ in range(rounds)]
    copies_s = [copy_s for copy_s, _ in pairs]
    ratios = [stage_s / copy_s for copy_s, stage_s in pairs]
    return [
        Measure(SECTION, "staging / copy, from the second save on", "x", ratios, BOUND),
        Measure(SECTION, "staging / copy, the first save (takes the memory)", "x", [first_s / min(copies_s)]),
        Measure(SECTION, "the copy", "ms", [copy_s * 1e3 for copy_s in copies_s]),
    ]


class Big(LightningModule):
    """The same tensors as a module, with AdamW."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.tensors = torch.nn.ParameterList([torch.rand(shape) for shape in _shapes(width)])

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return torch.stack([tensor.sum() for tensor in self.tensors]).sum()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), foreach=False)  # one tensor at a time takes less memory


class CopyBetweenSaves(Callback):
    """Times the yardstick before each boundary, when nothing is being written."""

    def __init__(self) -> None:
        self.copies_s: list[float] = []

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        for thread in threading.enumerate():
            if thread.name == WRITER:
                thread.join()
        if batch_idx == 0:  # moments exist from here on
            moments = trainer.optimizers[0].state.values()
            found = [tensor for entry in moments for tensor in entry.values()]
            self._copy = Copy([*(p.detach() for p in pl_module.parameters()), *found])
        self.copies_s.append(timed(self._copy))


def _measure_fit(width: int, *, rounds: int) -> list[Measure]:
    boundary, copies = Added(time.perf_counter), CopyBetweenSaves()
    loader = make_loader(Empty(rounds + 1), batch_size=1, num_workers=0)
    with tempfile.TemporaryDirectory() as directory:
        resume = ResumeCallback(directory, save=SaveEvery(steps=1), keep=Keep(last=1))
        fit(Big(width), loader, [InsideShadow(boundary), resume, OutsideShadow(boundary), copies])
    ratios = [ours / plain for plain, ours in zip(copies.copies_s, boundary.calls_s, strict=True)]
    # the save before the first step held no moments: the one after it, the first here, takes the memory again
    return [
        Measure(SECTION, "boundary of a fit that saves / copy, from the second full save on", "x", ratios[1:], BOUND),
        Measure(SECTION, "boundary of a fit that saves / copy, the first full save", "x", ratios[:1]),
    ]


def measure(*, quick: bool) -> list[Measure]:
    width, rounds = (QUICK_WIDTH, QUICK_ROUNDS) if quick else (WIDTH, ROUNDS)
    found = _measure_staging(width, rounds=rounds)
    gc.collect()  # its arena and its copies go before the fit takes its own
    return found + _measure_fit(width, rounds=min(rounds, FIT_ROUNDS))
