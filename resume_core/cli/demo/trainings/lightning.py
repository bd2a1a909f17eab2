"""Digits with Lightning; see the package."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import lightning.pytorch as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn

from lightning_resume import Changes, ResumeCallback, SaveEvery
from resume_core.cli.demo.trainings.digits import Batch, loaders, make_layers, make_optimizer
from resume_core.cli.demo.trainings.writing import Writer

__all__ = ["Net", "Recorder", "train"]


class Net(L.LightningModule):
    """The network.

    Args:
        num_steps: of the whole training.
    """

    def __init__(self, num_steps: int) -> None:
        super().__init__()
        self.num_steps = num_steps
        self.layers = make_layers()

    def training_step(self, batch: Batch, batch_idx: int) -> torch.Tensor:
        """The loss of a batch, shape ()."""
        _, images, labels = batch
        return nn.functional.cross_entropy(self.layers(images), labels)

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Log the accuracy."""
        _, images, labels = batch
        self.log("accuracy", (self.layers(images).argmax(1) == labels).float().mean(), batch_size=len(labels))

    def configure_optimizers(self) -> Any:
        """The optimizer, and the schedule of its learning rate."""
        optimizer, schedule = make_optimizer(self, self.num_steps)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


class Recorder(L.Callback):
    """Writes down every batch that was trained on.

    Args:
        writer: where to.
        num_samples: of the training data.
    """

    def __init__(self, writer: Writer, num_samples: int) -> None:
        self._writer, self._num_samples = writer, num_samples
        self._rate = 0.0

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """What was restored is in place; nothing is trained yet."""
        num_batches = int(trainer.num_training_batches)
        self._writer.begin(begins_at=trainer.global_step, num_batches=num_batches, num_samples=self._num_samples)

    def on_before_optimizer_step(self, trainer: L.Trainer, pl_module: Any, optimizer: torch.optim.Optimizer) -> None:
        """The learning rate that this step takes."""
        self._rate = float(optimizer.param_groups[0]["lr"])

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """The batch is used up: its step is done."""
        ids, images, _ = batch
        place = {"step": trainer.global_step, "epoch": trainer.current_epoch, "batch": batch_idx}
        self._writer.batch(**place, ids=ids, inputs=images, rate=self._rate, loss=float(outputs["loss"]))


def _saving(job: dict[str, Any]) -> tuple[L.Callback, str | None]:
    """What saves, and the ``ckpt_path`` that goes with it."""
    directory = Path(job["folder"], "checkpoints")
    if job["plugin"]:
        save = SaveEvery(steps=job["save_steps"])
        return ResumeCallback(directory, save=save, changes=Changes(allow=("seed",))), None
    stock = ModelCheckpoint(directory, filename="{step}", every_n_train_steps=job["save_steps"], save_last=True)
    return stock, "last"


def train(job: dict[str, Any]) -> None:
    """Train as ``job`` says, from wherever the checkpoints in its folder end."""
    torch.set_num_threads(1)  # sums are split over threads: any number would do, as long as it stays the same
    L.seed_everything(job["seed"], verbose=False)
    loader, held_out = loaders()
    writer = Writer(job)
    recorder = Recorder(writer, len(loader.dataset))  # type: ignore[arg-type]  # a Dataset need not have a length
    saving, ckpt_path = _saving(job)
    trainer = L.Trainer(
        max_epochs=job["epochs"],
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        default_root_dir=job["folder"],
        callbacks=[recorder, saving],
        enable_checkpointing=not job["plugin"],
    )
    net = Net(num_steps=job["epochs"] * len(loader))
    trainer.fit(net, loader, held_out, ckpt_path=ckpt_path)
    writer.end(
        parameters=net.state_dict(),
        optimizer=[optimizer.state_dict() for optimizer in trainer.optimizers],
        accuracy=float(trainer.callback_metrics["accuracy"]),
    )


if __name__ == "__main__":
    train(json.loads(sys.argv[1]))
