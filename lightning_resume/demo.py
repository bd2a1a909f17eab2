"""The training that ``exact-resume demo`` starts, kills and starts again: ``python -m lightning_resume.demo JOB``.

``JOB`` is a JSON object: ``folder``, ``name`` (of this start), ``plugin``, ``seed``, ``epochs``, ``save_steps``. What a
start did is left in ``folder``, for a parent process that need not know Lightning::

    NAME.jsonl   a line when it begins (``begins_at``: optimizer steps that lie behind it), then a line for each batch
    NAME.json    at the end of the training: digests of the final state, and the accuracy on held-out digits
    checkpoints  whatever the plugin, or stock Lightning, saves
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import sys
from pathlib import Path
from typing import Any

import lightning.pytorch as L
import numpy as np
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, Dataset

from lightning_resume.callback import ResumeCallback
from resume_core.policy import Changes, SaveEvery

__all__ = ["Digits", "Net", "Recorder", "digest", "train"]

_BATCH_SIZE = 16
_HELD_OUT = 5  # every fifth digit is for validation

Sample = tuple[int, torch.Tensor, int]
Batch = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


class Digits(Dataset[Sample]):
    """The 8x8 handwritten digits that come with scikit-learn.

    Args:
        train: the four fifths that are trained on, augmented; otherwise the rest as it is.
    """

    def __init__(self, train: bool) -> None:
        digits = load_digits()
        chosen = (np.arange(len(digits.target)) % _HELD_OUT == 0) != train
        self.images = (digits.images[chosen] / 16).astype(np.float32)
        self.labels = digits.target[chosen]
        self.train = train

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Sample:
        """The id, the image of shape (1, 8, 8) and the label of a sample."""
        image = self.images[index]
        image = _augment(image) if self.train else image
        return index, torch.from_numpy(image.copy()).unsqueeze(0), int(self.labels[index])


def _augment(image: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Shift by Python's random numbers, add noise by NumPy's, erase a square by torch's."""
    image = np.roll(image, (random.randint(-1, 1), random.randint(-1, 1)), axis=(0, 1))
    image = image + np.random.normal(0, 0.1, image.shape).astype(np.float32)
    if torch.rand(()) < 0.5:
        top, left = torch.randint(0, 7, (2,)).tolist()
        image[top : top + 2, left : left + 2] = 0
    return image


class Net(L.LightningModule):
    """A small CNN with dropout, AdamW, and a learning rate that changes with every step.

    Args:
        num_steps: of the whole training.
    """

    def __init__(self, num_steps: int) -> None:
        super().__init__()
        self.num_steps = num_steps
        self.layers = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
            nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Dropout(0.2), nn.Linear(32 * 16, 10),
        )  # fmt: skip

    def training_step(self, batch: Batch, batch_idx: int) -> torch.Tensor:
        """The loss of a batch, shape ()."""
        _, images, labels = batch
        return nn.functional.cross_entropy(self.layers(images), labels)

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Log the accuracy."""
        _, images, labels = batch
        self.log("accuracy", (self.layers(images).argmax(1) == labels).float().mean(), batch_size=len(labels))

    def configure_optimizers(self) -> Any:
        """AdamW under a one-cycle schedule."""
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=self.num_steps)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


class Recorder(L.Callback):
    """Writes down every batch that was trained on.

    Args:
        path: one JSON object a line; each line is whole even if the process is killed.
        begin: facts for the line that it begins with.
    """

    def __init__(self, path: Path, **begin: Any) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._begin = begin
        self._rate = 0.0

    def _write(self, **facts: Any) -> None:
        os.write(self._file, (json.dumps(facts) + "\n").encode())

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """What was restored is in place; nothing is trained yet."""
        self._write(begins_at=trainer.global_step, num_batches=int(trainer.num_training_batches), **self._begin)

    def on_before_optimizer_step(self, trainer: L.Trainer, pl_module: Any, optimizer: torch.optim.Optimizer) -> None:
        """The learning rate that this step takes."""
        self._rate = float(optimizer.param_groups[0]["lr"])

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """The batch is used up: its step is done."""
        ids, images, _ = batch
        self._write(
            step=trainer.global_step,
            epoch=trainer.current_epoch,
            batch=batch_idx,
            ids=ids.tolist(),
            inputs=digest(images),
            rate=self._rate,
            loss=float(outputs["loss"]),
        )


def digest(state: Any) -> str:
    """SHA-256 of a nested state: of every tensor its type, shape and bytes, of every other value its text."""
    found = hashlib.sha256()

    def add(value: Any) -> None:
        if isinstance(value, torch.Tensor):
            found.update(f"{value.dtype}{tuple(value.shape)}".encode() + value.detach().contiguous().numpy().tobytes())
        elif isinstance(value, (dict, list, tuple)):
            found.update(f"{type(value).__name__}{len(value)}".encode())
            for item in value.items() if isinstance(value, dict) else value:
                add(item)
        else:
            found.update(repr(value).encode() + b"\0")

    add(state)
    return found.hexdigest()


def _saving(job: dict[str, Any]) -> tuple[L.Callback, str | None]:
    """What saves, and the ``ckpt_path`` that goes with it."""
    directory = Path(job["folder"], "checkpoints")
    if job["plugin"]:
        save = SaveEvery(steps=job["save_steps"])
        return ResumeCallback(directory, save=save, changes=Changes(allow=("seed",))), None
    stock = ModelCheckpoint(directory, filename="{step}", every_n_train_steps=job["save_steps"], save_last=True)
    return stock, "last"


def train(job: dict[str, Any]) -> None:
    """Train as ``job`` says, from wherever the checkpoints in its folder end; see the module."""
    folder, name = Path(job["folder"]), job["name"]
    torch.set_num_threads(1)  # sums are split over threads: any number would do, as long as it stays the same
    L.seed_everything(job["seed"], verbose=False)
    data, held_out = Digits(train=True), Digits(train=False)
    recorder = Recorder(folder / f"{name}.jsonl", seed=job["seed"], num_samples=len(data))
    saving, ckpt_path = _saving(job)
    trainer = L.Trainer(
        max_epochs=job["epochs"],
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        default_root_dir=folder,
        callbacks=[recorder, saving],
        enable_checkpointing=not job["plugin"],
    )
    loader = DataLoader(data, _BATCH_SIZE, shuffle=True, num_workers=2)
    net = Net(num_steps=job["epochs"] * len(loader))
    trainer.fit(net, loader, DataLoader(held_out, 120), ckpt_path=ckpt_path)
    _finish(folder / f"{name}.json", trainer, net)


def _finish(path: Path, trainer: L.Trainer, net: Net) -> None:
    end = {
        "parameters": digest(net.state_dict()),
        "optimizer": digest([optimizer.state_dict() for optimizer in trainer.optimizers]),
        "accuracy": float(trainer.callback_metrics["accuracy"]),
    }
    unfinished = path.with_suffix(".tmp")
    unfinished.write_text(json.dumps(end))
    unfinished.replace(path)


if __name__ == "__main__":
    train(json.loads(sys.argv[1]))
