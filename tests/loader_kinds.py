"""Loaders of every kind, and what it takes to compare an interrupted pass over one with a whole one."""

from __future__ import annotations

import dataclasses
import functools
import json
import random
from collections.abc import Callable, Sequence
from typing import Any

import datasets
import torch
from loader_parts import (
    BATCH_SIZE,
    NUM_SAMPLES,
    Ahead,
    Collate,
    CountingSampler,
    GlobalSampler,
    Keyed,
    LoopingBatches,
    Mapping,
    Mixing,
    Own,
    OwnSampler,
    Portable,
    Relaying,
    Samples,
    Scaling,
    TorchSampler,
    Transformed,
    TupleBatches,
    VaryingBatches,
    WholeBatches,
    collate_columns,
    collate_rows,
    collate_stacked,
    collate_tensors,
    convert,
    global_draws,
    rng_fingerprint,
    scramble,
)
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Dataset,
    DistributedSampler,
    RandomSampler,
    StackDataset,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)
from torchdata.stateful_dataloader import StatefulDataLoader

from resume_core.capture.loader import ResumableLoader

NUM_EPOCHS = 3


def hugging_face() -> datasets.Dataset:
    rows = datasets.Dataset.from_dict({"id": [float(index) for index in range(NUM_SAMPLES)]})
    own = Own()

    def transform(batch: dict[str, list[float]]) -> dict[str, Any]:
        noise = [[*global_draws(), *own()] for _ in batch["id"]]
        return {
            "id": batch["id"],
            **{f"draw-{place}": list(draws) for place, draws in enumerate(zip(*noise, strict=True))},
        }

    return rows.with_transform(transform)


def nested_subsets() -> Dataset:
    return Subset(Subset(Samples(NUM_SAMPLES + 3), range(1, NUM_SAMPLES + 3)), range(NUM_SAMPLES))


def noisy_tensors() -> Dataset:
    return TensorDataset(torch.arange(NUM_SAMPLES * 2, dtype=torch.float64).reshape(NUM_SAMPLES, 2))


def batched(dataset: Any, /, cls: type[DataLoader] = DataLoader, **options: Any) -> DataLoader:
    options = {"batch_size": BATCH_SIZE, "collate_fn": Collate(), **options}
    return cls(dataset, **options)


def by_batches(dataset: Any, /, sampler: Any, **options: Any) -> DataLoader:
    return DataLoader(dataset, batch_sampler=sampler, collate_fn=Collate(), **options)


def seeded_generator() -> torch.Generator:
    return torch.Generator().manual_seed(42)


def with_user_generator(**options: Any) -> DataLoader:
    return batched(Samples(), shuffle=True, generator=seeded_generator(), **options)


def with_shared_torch_generator(**options: Any) -> DataLoader:
    generator = seeded_generator()
    return batched(Samples(), sampler=TorchSampler(generator), generator=generator, **options)


def with_shared_python_generator(**options: Any) -> DataLoader:
    dataset = Samples()
    return batched(dataset, sampler=OwnSampler(dataset.own.kinds["python"]), **options)


def with_names(**options: Any) -> DataLoader:
    names = [f"sample-{index}" for index in range(NUM_SAMPLES)]
    sampler = SubsetRandomSampler(names)
    return DataLoader(Keyed(), batch_size=None, sampler=sampler, collate_fn=convert, **options)


def with_collate_of_dataset(**options: Any) -> DataLoader:
    class Collating(Samples):
        def collate(self, samples: Any) -> dict[str, Any]:
            return {"rows": samples, "batch": [*global_draws(), *self.own()]}

    dataset = Collating()
    return DataLoader(dataset, BATCH_SIZE, shuffle=True, collate_fn=dataset.collate, **options)


def weights() -> list[float]:
    return [1.0 + index % 5 for index in range(NUM_SAMPLES)]


KINDS: dict[str, Callable[..., DataLoader]] = {
    "shuffled": lambda **o: batched(Samples(), shuffle=True, **o),
    "in order": lambda **o: batched(Samples(), **o),
    "drop_last": lambda **o: batched(Samples(), shuffle=True, drop_last=True, **o),
    "generator of the user": with_user_generator,
    "replacement": lambda **o: batched(Samples(), sampler=RandomSampler(range(NUM_SAMPLES), True, 30), **o),
    "weighted": lambda **o: batched(Samples(), sampler=WeightedRandomSampler(weights(), 25), **o),
    "weighted without replacement": lambda **o: batched(
        Samples(), sampler=WeightedRandomSampler(weights(), 19, replacement=False), **o
    ),
    "random subset": lambda **o: batched(Samples(), sampler=SubsetRandomSampler(range(3, NUM_SAMPLES)), **o),
    "distributed": lambda **o: batched(Samples(), sampler=DistributedSampler(range(NUM_SAMPLES), 2, 1), **o),
    "sampler of global draws": lambda **o: batched(Samples(), sampler=GlobalSampler(), **o),
    "sampler with a generator": lambda **o: batched(Samples(), sampler=OwnSampler(random.Random()), **o),
    "sampler with the loader's generator": with_shared_torch_generator,
    "sampler with the dataset's generator": with_shared_python_generator,
    "sampler that counts": lambda **o: batched(Samples(), sampler=CountingSampler(), **o),
    "list of batches": lambda **o: by_batches(Samples(), [[3, 1], [2], [5, 6, 7], [0, 9], [8, 4]], **o),
    "varying batches": lambda **o: by_batches(Samples(), VaryingBatches(), **o),
    "tuples of indices": lambda **o: by_batches(Samples(), VaryingBatches(tuple), **o),
    "tensors of indices": lambda **o: by_batches(Samples(), VaryingBatches(torch.tensor), **o),
    "tuples for __getitems__": lambda **o: by_batches(TupleBatches(), VaryingBatches(tuple), **o),
    "single indices": lambda **o: DataLoader(Samples(), batch_size=None, shuffle=True, collate_fn=convert, **o),
    "single indices of global draws": lambda **o: DataLoader(
        Samples(), batch_size=None, sampler=GlobalSampler(), collate_fn=convert, **o
    ),
    "single names": with_names,
    "looping __getitems__": lambda **o: batched(LoopingBatches(), shuffle=True, **o),
    "whole-batch __getitems__": lambda **o: batched(WholeBatches(), shuffle=True, **o),
    "portable": lambda **o: batched(Portable(), shuffle=True, **{"collate_fn": collate_rows, **o}),
    "transforms": lambda **o: batched(Transformed(), shuffle=True, **o),
    "collate function of the dataset": with_collate_of_dataset,
    "nested subsets": lambda **o: batched(nested_subsets(), shuffle=True, **o),
    "concatenated": lambda **o: batched(ConcatDataset([Subset(Transformed(), range(9)), Transformed()]), **o),
    "stacked": lambda **o: batched(
        StackDataset(Samples(), LoopingBatches()), shuffle=True, **{"collate_fn": collate_stacked, **o}
    ),
    "tensors": lambda **o: batched(noisy_tensors(), shuffle=True, **{"collate_fn": collate_tensors, **o}),
    "hugging face": lambda **o: batched(hugging_face(), shuffle=True, **{"collate_fn": collate_columns, **o}),
    "hugging face subset": lambda **o: batched(
        Subset(hugging_face(), range(2, NUM_SAMPLES)), shuffle=True, **{"collate_fn": collate_columns, **o}
    ),
    "relaying subclass": lambda **o: batched(Samples(), Relaying, shuffle=True, scale=2.0, **o),
    "mapping subclass": lambda **o: batched(Samples(), Mapping, shuffle=True, **o),
    "mixing subclass": lambda **o: batched(Samples(), Mixing, shuffle=True, **o),
    "scaling subclass": lambda **o: batched(Samples(), Scaling, shuffle=True, **o),
    "stateful": lambda **o: batched(
        Samples(), StatefulDataLoader, shuffle=True, **{"generator": seeded_generator(), **o}
    ),
    "subclass that reads ahead": lambda **o: batched(Samples(), Ahead, sampler=GlobalSampler(), **o),
}
READS_ONCE = [  # each sample at most once an epoch, by a dataset that counts
    "shuffled",
    "in order",
    "drop_last",
    "generator of the user",
    "weighted without replacement",
    "random subset",
    "distributed",
    "sampler that counts",
    "list of batches",
    "varying batches",
    "tuples for __getitems__",
    "tensors of indices",
    "single indices",
    "single names",
    "looping __getitems__",
    "whole-batch __getitems__",
    "relaying subclass",
    "stateful",
]


@dataclasses.dataclass
class Run:
    """A loader under the control of a handle, in a process of its own as far as the generators go."""

    loader: DataLoader
    handle: ResumableLoader

    @classmethod
    def start(cls, kind: str, seed: int, state: dict[str, Any] | None = None, **options: Any) -> Run:
        scramble(seed)
        loader = KINDS[kind](**options)
        scramble(seed + 1)
        handle = ResumableLoader(loader, key=2026 if state is None else seed, slot=0)
        if state is not None:
            handle.seek(json.loads(json.dumps(state)))
        return cls(loader, handle)

    def epoch(self, epoch: int, num_batches: int | None = None) -> tuple[list[Any], list[dict[str, Any]]]:
        """Batches of an epoch, all or the first few, and the states before, between and behind them."""
        self.handle.begin(epoch)
        before, attributes = rng_fingerprint(), visible(self.loader)
        iterator, batches = iter(self.loader), []
        states = [self.handle.state(iterator.mark)]
        while num_batches is None or len(batches) < num_batches:
            batch = next(iterator, None)
            assert visible(self.loader) == attributes
            if batch is None:
                break
            batches.append(batch)
            states.append(self.handle.state(iterator.mark))
        assert rng_fingerprint() == before
        return batches, states


def visible(loader: DataLoader) -> tuple[Any, ...]:
    """What a user sees of a loader, by identity."""
    names = ("dataset", "sampler", "batch_sampler", "collate_fn", "worker_init_fn", "generator", "batch_size")
    return len(loader), loader.drop_last, [id(getattr(loader, name)) for name in names]


def ids(batches: Sequence[Any]) -> list[int]:
    return [int(row[0]) for batch in batches for row in batch["rows"]]


@functools.cache
def whole(kind: str) -> list[tuple[list[Any], list[dict[str, Any]]]]:
    """All epochs of a run that nothing interrupted, without workers: batches, and states around them."""
    run = Run.start(kind, seed=1)
    return [run.epoch(epoch) for epoch in range(NUM_EPOCHS)]
