"""Real data and a small network: the 8x8 handwritten digits that come with scikit-learn."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, Dataset

__all__ = ["Batch", "Digits", "loaders", "make_layers", "make_optimizer"]

_BATCH_SIZE = 16
_HELD_OUT = 5  # every fifth digit is for validation

Sample = tuple[int, torch.Tensor, int]
Batch = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""Ids, images of shape (batch, 1, 8, 8), labels."""


class Digits(Dataset[Sample]):
    """The digits, as ids, images and labels.

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


def loaders() -> tuple[DataLoader[Sample], DataLoader[Sample]]:
    """Of the training data, shuffled and read by two workers, and of the rest."""
    train = DataLoader(Digits(train=True), _BATCH_SIZE, shuffle=True, num_workers=2)
    return train, DataLoader(Digits(train=False), 120)


def make_layers() -> nn.Sequential:
    """A small CNN with batch norms and dropout."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Dropout(0.2), nn.Linear(32 * 16, 10),
    )  # fmt: skip


def make_optimizer(net: nn.Module, num_steps: int) -> tuple[torch.optim.Optimizer, Any]:
    """AdamW, and a one-cycle schedule that changes its learning rate with each of ``num_steps``."""
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    return optimizer, torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=num_steps)
