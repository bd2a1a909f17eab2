"""Loaders of every kind, and what it takes to compare an interrupted pass over one with a whole one."""

from __future__ import annotations

import dataclasses
import functools
import json
import mmap
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import datasets
import numpy as np
import torch
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Dataset,
    DistributedSampler,
    RandomSampler,
    Sampler,
    StackDataset,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    default_collate,
)
from torchdata.stateful_dataloader import StatefulDataLoader

from resume_core.capture.loader import ResumableLoader
from resume_core.capture.rng import capture_rng

NUM_SAMPLES = 23
BATCH_SIZE = 4
NUM_EPOCHS = 3


def scramble(seed: int) -> None:
    """Another process: the global generators stand somewhere else."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def global_draws() -> list[float]:
    """From each global generator; one Gaussian of a pair stays pending in two of them."""
    return [random.random(), random.gauss(0, 1), np.random.rand(), np.random.randn(), torch.rand(1).item()]


def rng_fingerprint() -> tuple[Any, ...]:
    """The state of the global generators as something that can be compared."""
    state = capture_rng()
    numpy = state["numpy"]
    return (
        tuple(state["python"]["words"].tolist()),
        state["python"]["gauss"],
        numpy["state"]["key"].tobytes(),
        numpy["state"]["pos"],
        numpy["has_gauss"],
        numpy["gauss"],
        bytes(state["torch"].tolist()),
    )


class Own:
    """One generator of every kind, each made anew in every process."""

    __slots__ = ("kinds",)

    def __init__(self) -> None:
        self.kinds = {
            "pcg64": np.random.default_rng(),
            "philox": np.random.Generator(np.random.Philox()),
            "legacy": np.random.RandomState(),
            "torch": torch.Generator(),
            "python": random.Random(),
        }
        self.kinds["torch"].seed()

    def __call__(self) -> list[float]:
        own = self.kinds
        return [
            own["pcg64"].normal(),
            own["philox"].random(),
            own["legacy"].randn(),
            torch.rand(1, generator=own["torch"]).item(),
            own["python"].gauss(0, 1),
        ]


class Samples(Dataset):
    """Rows of an id and what every generator drew for it. ``reads`` counts, in memory that forks share."""

    def __init__(self, num_samples: int = NUM_SAMPLES) -> None:
        self.own = Own()
        self.num_samples = num_samples
        self.reads = np.frombuffer(mmap.mmap(-1, 8 * num_samples), np.int64)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "reads": np.zeros_like(self.reads)}

    def __len__(self) -> int:
        return self.num_samples

    def __getitem__(self, index: Any) -> list[float]:
        self.reads[int(index)] += 1
        return [float(index), *global_draws(), *self.own()]


class Keyed(Samples):
    """Read by names."""

    def __getitem__(self, index: str) -> list[float]:
        return super().__getitem__(int(index.removeprefix("sample-")))


class Portable(Dataset):
    """Can be sent to a process that is not forked; torch cannot send two torch.Generators."""

    def __init__(self) -> None:
        self.jitter = Compose(Jitter(), Jitter())

    def __len__(self) -> int:
        return NUM_SAMPLES

    def __getitem__(self, index: int) -> list[float]:
        return self.jitter([float(index), *global_draws()])


class LoopingBatches(Samples):
    """Fetches a batch by a loop over it."""

    def __getitems__(self, indices: Any) -> list[list[float]]:
        return [self[index] for index in indices]


class WholeBatches(Samples):
    """Transforms a batch as one; goes over the indices more than once, and not by iterating them."""

    def __getitems__(self, indices: Any) -> list[list[float]]:
        assert len(indices) == len(np.asarray(indices))
        shift = global_draws() + self.own()
        rows = indices[:]
        self.reads[np.asarray(rows)] += 1
        return [[float(index), *shift] for index in sorted(rows)]


class TupleBatches(Samples):
    """Insists on a batch of the type that its batch sampler makes."""

    def __getitems__(self, indices: Any) -> list[list[float]]:
        assert type(indices) is tuple
        return [self[index] for index in indices]


class Jitter:
    """A transform with a generator of its own."""

    def __init__(self) -> None:
        self._rng = np.random.default_rng()

    def __call__(self, row: list[float]) -> list[float]:
        return [*row, self._rng.random()]


class Shared:
    """A transform whose generator belongs to its class."""

    state = np.random.RandomState()

    def __call__(self, row: list[float]) -> list[float]:
        return [*row, self.state.randn()]


class Compose:
    def __init__(self, *transforms: Callable[[Any], Any]) -> None:
        self.transforms = list(transforms)

    def __call__(self, row: Any) -> Any:
        return functools.reduce(lambda value, transform: transform(value), self.transforms, row)


class Transformed(Samples):
    def __init__(self) -> None:
        super().__init__()
        nested = Compose(Compose(Jitter(), Compose(Jitter(), Shared())))
        self.transform = functools.partial(nested)

    def __getitem__(self, index: int) -> list[float]:
        return self.transform(super().__getitem__(index))


class Collate:
    """Draws for the batch from every generator, its own included."""

    def __init__(self) -> None:
        self.own = Own()

    def __call__(self, samples: Any) -> dict[str, Any]:
        return {"rows": samples, "batch": [*global_draws(), *self.own()]}


def convert(sample: Any) -> dict[str, Any]:
    """A collate function for single samples."""
    return {"rows": [sample], "batch": global_draws()}


def collate_rows(samples: Any) -> dict[str, Any]:
    return {"rows": samples, "batch": global_draws()}


def collate_tensors(samples: Any) -> dict[str, Any]:
    return {"rows": torch.stack([sample[0] for sample in samples]).tolist(), "batch": global_draws()}


def collate_columns(samples: Any) -> dict[str, Any]:
    columns = default_collate(samples)
    return {"rows": torch.stack(list(columns.values()), dim=1).tolist(), "batch": global_draws()}


def collate_stacked(samples: Any) -> dict[str, Any]:
    return {"rows": [[*one, *other] for one, other in samples], "batch": global_draws()}


class GlobalSampler(Sampler[int]):
    """Draws each index when it is asked for, from the three global generators in turn."""

    def __init__(self, num_samples: int = NUM_SAMPLES) -> None:
        self.num_samples = num_samples

    def __len__(self) -> int:
        return self.num_samples

    def __iter__(self) -> Iterator[int]:
        for place in range(self.num_samples):
            draws = (random.random(), np.random.rand(), torch.rand(()).item())
            yield int(draws[place % 3] * self.num_samples)


class OwnSampler(GlobalSampler):
    """Draws each index from a generator of its own, which may be another's too."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self.rng = rng

    def __iter__(self) -> Iterator[int]:
        for _ in range(self.num_samples):
            yield self.rng.randrange(self.num_samples)


class TorchSampler(GlobalSampler):
    """Draws each index from a torch generator that is the loader's as well."""

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()
        self.generator = generator

    def __iter__(self) -> Iterator[int]:
        for _ in range(self.num_samples):
            yield int(torch.randint(self.num_samples, (), generator=self.generator))


class CountingSampler(GlobalSampler):
    """Shuffles by how often it was iterated, as some samplers do that know no set_epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.num_passes = 0

    def __iter__(self) -> Iterator[int]:
        self.num_passes += 1
        order = list(range(self.num_samples))
        random.Random(self.num_passes).shuffle(order)
        yield from order


class VaryingBatches(Sampler[list[int]]):
    """Batches of one to five samples, drawn from the global generators and one of its own."""

    def __init__(self, kind: Callable[[list[int]], Any] = list) -> None:
        self.kind = kind
        self.rng = random.Random()

    def __len__(self) -> int:
        return 8

    def __iter__(self) -> Iterator[Any]:
        order = torch.randperm(NUM_SAMPLES).tolist()
        for _ in range(len(self) - 1):
            size = self.rng.randint(1, 3)
            yield self.kind(order[:size])
            del order[:size]
        yield self.kind(order)


class Relaying(DataLoader):
    """Yields what the plain loader yields, from a generator, with settings of its own."""

    def __init__(self, *args: Any, scale: float = 1.0, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.scale = scale

    def __iter__(self) -> Iterator[Any]:
        assert self.batch_sampler.batch_size == BATCH_SIZE  # what it sees of itself is plain
        for batch in super().__iter__():
            yield {**batch, "scale": self.scale}


class Mixing(DataLoader):
    """Draws in its __iter__, before it goes over the data and for each batch."""

    def __iter__(self) -> Iterator[Any]:
        first = global_draws()
        for batch in super().__iter__():
            yield {**batch, "first": first, "mixed": global_draws()}


class Scaling(DataLoader):
    """Draws when its __iter__ is called."""

    def __iter__(self) -> Iterator[Any]:
        scale, batches = global_draws(), super().__iter__()
        return ({**batch, "scale": scale} for batch in batches)


class Ahead(DataLoader):
    """Fetches one batch ahead of what it yields, as loaders do that must know the last."""

    def __iter__(self) -> Iterator[Any]:
        held = []
        for batch in super().__iter__():
            yield from held
            held = [batch]
        yield from held


class Mapping(DataLoader):
    """Its __iter__ is no generator function."""

    def __iter__(self) -> Iterator[Any]:
        return map(self.with_length, super().__iter__())

    def with_length(self, batch: dict[str, Any]) -> dict[str, Any]:
        return {**batch, "length": len(self)}


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
