"""Whole runs inside the test process, and their tails resumed from checkpoints under another global seed.

For what a kill would not add to: everything a resumed run is made of is built anew, the global generators stand
somewhere else, and all that it does from there on is compared with what the whole run did. Kills in processes of their
own are in `harness`.
"""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any

import lightning.pytorch as L
import numpy as np
import torch
from harness import digest
from lightning.pytorch.loggers.logger import Logger
from small import QUIET, Settle

from lightning_resume import Changes, Keep, ResumeCallback, SaveEvery


class Model(L.LightningModule):
    """Trains on whatever a loader gives: on four numbers that summarise it."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))

    def loss(self, batch: Any) -> torch.Tensor:
        return (self.layers(features(batch)) - 1).pow(2).mean()

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = self.loss(batch)
        self.log("loss", loss, on_step=True, on_epoch=True, batch_size=1)
        return loss

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        self.log("val_loss", self.loss(batch) + torch.rand(()) * 0.01, batch_size=1)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        return [optimizer], [
            {"scheduler": torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 40), "interval": "step"}
        ]


def numbers(batch: Any) -> list[float]:
    """All numbers of a batch, however it is nested."""
    if isinstance(batch, torch.Tensor):
        return batch.double().reshape(-1).tolist()
    if isinstance(batch, (int, float)):
        return [float(batch)]
    parts = batch.values() if isinstance(batch, dict) else batch if isinstance(batch, (list, tuple)) else ()
    return [number for part in parts for number in numbers(part)]


def features(batch: Any) -> torch.Tensor:
    """Four numbers, shape (1, 4)."""
    found = torch.tensor(numbers(batch), dtype=torch.float32)
    return torch.stack([found.mean(), found.std(), found.min(), found.max()]).unsqueeze(0) / 10


@dataclasses.dataclass
class Parts:
    """What a run is made of; built anew for each."""

    model: L.LightningModule
    data: dict[str, Any]
    trainer: dict[str, Any] = dataclasses.field(default_factory=dict)
    callbacks: list[L.Callback] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Run:
    """What a run did, in order, and what it was at its end."""

    parts: Parts
    trainer: L.Trainer
    events: list[Any]
    end: dict[str, Any]

    @property
    def batches(self) -> list[Any]:
        """What was trained on: epoch, number in it, numbers of the batch."""
        return [event for event in self.events if event[0] == "batch"]


class Witness(L.Callback):
    """Writes down what is trained on, with what outcome, and which hooks are called when."""

    def __init__(self, events: list[Any]) -> None:
        self.write = events.append

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        self.write(("batch", trainer.current_epoch, batch_idx, numbers(batch)))

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        rates = [group["lr"] for optimizer in trainer.optimizers for group in optimizer.param_groups]
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        scale = None if scaler is None else (scaler.get_scale(), scaler._get_growth_tracker())
        loss = outputs["loss"].item() if outputs else None
        self.write(("step", trainer.global_step, loss, list(map(float, rates)), scale))

    def on_train_epoch_start(self, trainer: Any, module: Any) -> None:
        self.write(("epoch start", trainer.current_epoch, trainer.global_step))

    def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
        self.write(("epoch end", trainer.current_epoch, trainer.global_step))

    def on_validation_start(self, trainer: Any, module: Any) -> None:
        self.write(("validation start", trainer.current_epoch, trainer.global_step))

    def on_validation_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, *args: Any) -> None:
        self.write(("validated", numbers(batch), *args))

    def on_validation_end(self, trainer: Any, module: Any) -> None:
        self.write(("validation end", trainer.current_epoch, trainer.global_step))


class Log(Logger):
    """Writes down what is logged."""

    name, version = "log", 0

    def __init__(self, events: list[Any]) -> None:
        super().__init__()
        self.write = events.append

    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        pass

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.write(("log", step, {name: float(value) for name, value in sorted(metrics.items())}))


def rest(whole: Run, run: Run) -> list[Any]:
    """The part of what ``whole`` did that ``run`` repeats."""
    return whole.events[len(whole.events) - len(run.events) :]


class SavesAt(L.Callback):
    """Asks for a save at the end of some batches, counted over the run."""

    def __init__(self, cuts: Collection[int]) -> None:
        self.cuts, self.num_batches = cuts, 0

    def on_train_batch_start(self, trainer: Any, *args: Any) -> None:
        self.num_batches += 1
        if self.num_batches in self.cuts:
            next(c for c in trainer.callbacks if isinstance(c, ResumeCallback))._session.request()


def run(
    directory: Path,
    build: Callable[[], Parts],
    *,
    seed: int,
    resume: str = "auto",
    every: bool = True,
    at: Collection[int] = (),
) -> Run:
    """Train from ``resume`` to the end; save at each boundary with ``every``, at the start and there with ``at``."""
    save = SaveEvery(minutes=1e-9) if every else SaveEvery(minutes=1e9, at_start=bool(at))
    callback = ResumeCallback(
        directory, resume=resume, save=save, keep=Keep(last=999), changes=Changes(allow=("seed",))
    )
    L.seed_everything(seed, verbose=False)
    parts, events = build(), []
    arguments = QUIET | {"max_epochs": 3, "log_every_n_steps": 2, "num_sanity_val_steps": 1, "logger": Log(events)}
    arguments |= {"default_root_dir": str(directory)} | parts.trainer
    trainer = L.Trainer(**arguments, callbacks=[Witness(events), callback, Settle(), SavesAt(at), *parts.callbacks])
    trainer.fit(parts.model, **parts.data)
    return Run(parts, trainer, events, end_of(trainer))


def end_of(trainer: L.Trainer) -> dict[str, Any]:
    """What a run is at its end."""
    return {
        "weights": digest(trainer.lightning_module.state_dict()),
        "optimizers": [digest(optimizer.state_dict()) for optimizer in trainer.optimizers],
        "schedulers": [config.scheduler.state_dict() for config in trainer.lr_scheduler_configs],
        "callbacks": digest([callback.state_dict() for callback in trainer.callbacks]),
        "precision": trainer.precision_plugin.state_dict(),
        "loops": _loops(trainer),
        "metrics": {name: float(value) for name, value in sorted(trainer.callback_metrics.items())},
        "rng": digest([random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state(), *_cuda_rng()]),
    }


def _loops(trainer: L.Trainer) -> dict[str, Any]:
    found: dict[str, Any] = trainer.fit_loop.state_dict()
    # what a stateful loader says of itself counts from where its iterator began; nobody reads it on a resume
    found["state_dict"].pop("combined_loader", None)
    return found


def _cuda_rng() -> list[torch.Tensor]:
    return torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []


def saved_batches(directory: Path, attempt: int = 1) -> dict[int, str]:
    """The checkpoints of an attempt, but for that of its end, by the number of batches that had been trained on."""
    found = {}
    for path in directory.glob(f"attempt-{attempt:04d}-*/*/manifest.json"):
        header = json.loads(path.read_text())["header"]
        if header["finished"] is None:
            found[header["progress"]["batch"]] = str(path.parent.relative_to(directory))
    return found


def usual_cuts(whole: Run) -> list[int]:
    """Inside an epoch, around the end of one, and at the end of the run."""
    ends, num_batches = [], 0
    for event in whole.events:
        num_batches += event[0] == "batch"
        ends += [num_batches] if event[0] == "epoch end" else []
    first = ends[0]
    return sorted({first - 1, first, first + 1, ends[-1]} - {0})


def replay(
    directory: Path, build: Callable[[], Parts], cuts: Iterable[int] | None = None, *, rebuild: Any = None
) -> tuple[Run, list[Run]]:
    """Train to the end, then again from each of some checkpoints; everything must be as it was.

    Args:
        directory: for checkpoints.
        build: what to train and how.
        cuts: numbers of batches trained on, over the run (negative ones count from its end); by default those where
            most can go wrong.
        rebuild: builds the resumed runs when they differ, in the number of workers for one.

    Returns:
        The whole run and the resumed ones.
    """
    cuts = None if cuts is None else list(cuts)
    known = cuts is not None and min(cuts, default=0) >= 0
    whole = run(directory, build, seed=7, every=not known, at=cuts if known and cuts else ())
    saved, runs = saved_batches(directory), []
    for cut in usual_cuts(whole) if cuts is None else cuts:
        cut = cut if cut >= 0 else len(whole.batches) + cut
        again = run(directory, rebuild or build, seed=1000 + cut, resume=saved[cut], every=False)
        assert again.events == rest(whole, again), f"resumed after {cut} batches"
        assert len(again.batches) == len(whole.batches) - cut
        assert again.end == whole.end, f"resumed after {cut} batches"
        runs.append(again)
    return whole, runs
