"""The data and the network that every tool trains: augmented samples, dropout, a batch at a time."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler, WeightedRandomSampler

from exact.job import Job, Recorder

WIDTH = 6


def sample(index: int, augmented: bool) -> dict[str, Any]:
    """One sample, augmented with what users draw from."""
    draws = [random.random(), np.random.rand(), torch.rand(()).item()] if augmented else [0.0] * 3
    noise = torch.tensor(draws)
    x = torch.cat([torch.tensor([index / 64, index % 7 / 7, index % 3 / 3]), noise])
    return {"ids": index, "x": x, "labels": torch.tensor([index / 32 - 1.0])}


class Samples(Dataset):
    """Numbered samples."""

    def __init__(self, num_samples: int, augmented: bool = True) -> None:
        self.num_samples, self.augmented = num_samples, augmented

    def __len__(self) -> int:
        return self.num_samples

    def __getitem__(self, index: int) -> dict[str, Any]:
        return sample(index, self.augmented)


class Streamed(IterableDataset):
    """The same samples, one behind the other, shared out among the workers."""

    def __init__(self, num_samples: int) -> None:
        self.num_samples = num_samples

    def __iter__(self) -> Iterator[dict[str, Any]]:
        info = torch.utils.data.get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        return (sample(index, augmented=True) for index in range(first, self.num_samples, step))


class OwnBatches(Sampler[list[int]]):
    """A batch sampler as users write them: batches of varying size, drawn from the global generators."""

    def __init__(self, num_samples: int, num_batches: int) -> None:
        self.num_samples, self.num_batches = num_samples, num_batches

    def __len__(self) -> int:
        return self.num_batches

    def __iter__(self) -> Iterator[list[int]]:
        order = np.random.permutation(self.num_samples).tolist()
        cuts = [0, *sorted(random.sample(range(1, self.num_samples), self.num_batches - 1)), self.num_samples]
        return (order[low:high] for low, high in itertools.pairwise(cuts))


def make_loader(job: Job, kind: type[DataLoader] = DataLoader) -> Any:
    """The train loader, of ``kind``: torch's, or torchdata's ``StatefulDataLoader``."""
    common: dict[str, Any] = {"num_workers": job.workers, "persistent_workers": job.persistent}
    data = Samples(job.num_samples, job.augmented)
    if job.order == "streamed":
        return kind(Streamed(job.num_samples), job.batch_size, **common)
    if job.order == "own batches":
        return kind(data, batch_sampler=OwnBatches(job.num_samples, job.num_batches), **common)
    if job.order == "weighted":
        weights = [1.0 + index for index in range(job.num_samples)]
        return kind(data, job.batch_size, sampler=WeightedRandomSampler(weights, job.num_samples), **common)
    return kind(data, job.batch_size, shuffle=job.order == "shuffled", **common)


def make_held_out() -> DataLoader:
    return DataLoader(Samples(8), 4)


class Net(nn.Module):
    """A network with dropout, whose loss is what a forward pass gives.

    Args:
        job: of this start.
        recorder: is told of each batch.
    """

    def __init__(self, job: Job, recorder: Recorder) -> None:
        super().__init__()
        self.below, self.above = nn.Linear(WIDTH, 32), nn.Linear(32, 1)
        self.dropout = nn.Dropout(job.dropout)
        self._record = recorder.batch

    def forward(self, ids: torch.Tensor, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        mask = self.dropout(torch.ones(len(x), 32))  # on its own, so that the stream shows beside what passes through
        loss = (self.above(self.below(x).tanh() * mask) - labels).pow(2).mean()
        if self.training:
            self._record(ids, x, mask, loss)
        return {"loss": loss}
