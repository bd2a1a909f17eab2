"""Digits with Accelerate; see the package."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn

from accelerate_resume import Changes, ResumePlugin, SaveEvery
from resume_core.cli.demo.trainings.digits import Batch, loaders, make_layers, make_optimizer
from resume_core.cli.demo.trainings.writing import Writer

__all__ = ["Training", "train"]


class Training:
    """One start.

    Args:
        job: what it was started with.
    """

    def __init__(self, job: dict[str, Any]) -> None:
        self._job, self._writer = job, Writer(job)
        self._directory = Path(job["folder"], "checkpoints")
        self._accelerator = Accelerator(cpu=True)
        self._resume = self._attach() if job["plugin"] else None
        loader, self._held_out = loaders()
        net = make_layers()
        optimizer, schedule = make_optimizer(net, job["epochs"] * len(loader))
        prepared = self._accelerator.prepare(net, optimizer, loader, schedule)
        self._net, self._optimizer, self._loader, self._schedule = prepared

    def _attach(self) -> ResumePlugin:
        save = SaveEvery(steps=self._job["save_steps"])
        plugin = ResumePlugin(self._directory, save=save, changes=Changes(allow=("seed",)))
        return plugin.attach(self._accelerator)

    def run(self) -> None:
        """Train, from wherever the checkpoints end."""
        if self._resume is not None:
            self._run_with_plugin(self._resume)
        else:
            self._run_stock()
        self._writer.end(
            parameters=self._accelerator.unwrap_model(self._net).state_dict(),
            optimizer=self._optimizer.state_dict(),
            accuracy=self._accuracy(),
        )

    def _run_with_plugin(self, resume: ResumePlugin) -> None:
        counters = resume.counters(step=0)
        epochs = resume.epochs(self._job["epochs"])  # restores
        self._begin(counters.step)
        for epoch in epochs:
            self._net.train()
            for batch in self._loader:
                self._train(epoch, counters.step, batch)
                counters.step += 1

    def _run_stock(self) -> None:
        """As Accelerate's own examples do it: ``save_state`` every so often, ``load_state``, ``skip_first_batches``."""
        step = max((int(path.name.removeprefix("step=")) for path in self._directory.glob("step=*")), default=0)
        if step:
            self._accelerator.load_state(str(self._directory / f"step={step}"))
        self._begin(step)
        first, num_skipped = divmod(step, len(self._loader))
        for epoch in range(first, self._job["epochs"]):
            self._net.train()
            skipped = num_skipped if epoch == first else 0
            batches: Iterable[Batch] = self._accelerator.skip_first_batches(self._loader, skipped)
            for batch in batches if skipped else self._loader:
                self._train(epoch, step, batch)
                step += 1
                if step % self._job["save_steps"] == 0:
                    self._accelerator.save_state(str(self._directory / f"step={step}"))

    def _begin(self, step: int) -> None:
        self._writer.begin(begins_at=step, num_batches=len(self._loader), num_samples=len(self._loader.dataset))

    def _train(self, epoch: int, step: int, batch: Batch) -> None:
        ids, images, labels = batch
        loss = nn.functional.cross_entropy(self._net(images), labels)
        self._accelerator.backward(loss)
        rate = float(self._optimizer.param_groups[0]["lr"])
        self._optimizer.step()
        self._schedule.step()
        self._optimizer.zero_grad()
        place = {"step": step + 1, "epoch": epoch, "batch": step % len(self._loader)}
        self._writer.batch(**place, ids=ids, inputs=images, rate=rate, loss=loss.item())

    def _accuracy(self) -> float:
        self._net.eval()
        with torch.no_grad():
            right = [self._net(images).argmax(1) == labels for _, images, labels in self._held_out]
        return float(torch.cat(right).float().mean())


def train(job: dict[str, Any]) -> None:
    """Train as ``job`` says, from wherever the checkpoints in its folder end."""
    torch.set_num_threads(1)  # sums are split over threads: any number would do, as long as it stays the same
    set_seed(job["seed"])
    Training(job).run()


if __name__ == "__main__":
    train(json.loads(sys.argv[1]))
