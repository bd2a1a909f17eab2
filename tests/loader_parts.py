"""What loaders of every kind are made of: datasets, collate functions, samplers, subclasses, all drawing at random."""

from __future__ import annotations

import functools
import mmap
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, Sampler, default_collate

from resume_core.capture.rng import capture_rng

NUM_SAMPLES = 23
BATCH_SIZE = 4


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
