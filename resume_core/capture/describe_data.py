"""What decides the data of a run, read off a loader as facts. Never iterates data and draws no random number."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Mapping
from typing import Any

import torch
from torch.utils.data import ConcatDataset, IterableDataset

from resume_core.capture.describe_files import Patience, describe_files
from resume_core.capture.fleeting import is_fleeting
from resume_core.capture.plain import array_digest, callable_name, callable_settings, class_path, plain
from resume_core.state import Fact

__all__ = ["describe_loader", "global_batches"]

_MAX_NESTING = 8
_MAX_PARTS = 64  # parts of a ConcatDataset described one by one; the lengths of all are compared
_SEED_LIMIT = 2**32
_WORKER_SETTINGS = ("num_workers", "prefetch_factor", "persistent_workers", "pin_memory", "in_order")


def describe_loader(loader: object, prefix: str = "data.0") -> dict[str, Fact]:
    """Batch size, sampler and dataset of a loader, as ``"data.0.batch_size"``.

    How the data is fetched (workers, prefetching, pinning) is information: it changes no sample. The functions that
    make batches and prepare workers are known by their names.

    Args:
        loader: a torch ``DataLoader`` as the user made it, before a framework wraps it, or any other iterable.
        prefix: what the names begin with.
    """
    facts = {f"{prefix}.class": Fact(class_path(loader), "info")}
    dataset = getattr(loader, "dataset", None)
    if dataset is None:
        return facts | {f"{prefix}.num_batches": Fact(_length(loader))}
    facts |= _batching(loader, prefix)
    if not isinstance(dataset, IterableDataset):
        facts |= _sampling(loader, prefix, _length(dataset))
    return facts | _Datasets().describe(dataset, f"{prefix}.dataset") | _fetching(loader, prefix)


def global_batches(facts: Mapping[str, Fact], factor: int) -> dict[str, Fact]:
    """How many samples an optimizer step takes of each loader, as ``"data.0.global_batch_size"``.

    Information, for people: what it follows from are facts of the run.

    Args:
        facts: of the loaders.
        factor: batches in it, over all ranks.
    """
    sizes = {name: fact.value for name, fact in facts.items() if re.fullmatch(r"data\.\d+\.batch_size", name)}
    return {
        name.replace("batch_size", "global_batch_size"): Fact(size * factor, "info")
        for name, size in sizes.items()
        if isinstance(size, int)
    }


def _length(sized: Any) -> int | None:
    try:
        return len(sized)
    except Exception:  # the user's own __len__ may raise anything; a length that is not known is not compared
        return None


def _batching(loader: Any, prefix: str) -> dict[str, Fact]:
    batch_sampler = getattr(loader, "batch_sampler", None)
    return {
        f"{prefix}.{name}": Fact(plain(getattr(batch_sampler, name, getattr(loader, name, None))))
        for name in ("batch_size", "drop_last")
    }


def _sampling(loader: Any, prefix: str, length: int | None) -> dict[str, Fact]:
    batch_sampler = getattr(loader, "batch_sampler", None)
    facts = {f"{prefix}.batch_sampler": Fact(batch_sampler and class_path(batch_sampler))}
    # next to a batch sampler without a sampler, the loader's own one is a placeholder that nobody iterates
    sampler = getattr(loader if batch_sampler is None else batch_sampler, "sampler", None)
    if sampler is None:
        return facts
    return facts | {f"{prefix}.sampler": Fact(class_path(sampler))} | _sampler(sampler, f"{prefix}.sampler", length)


def _sampler(sampler: object, place: str, length: int | None) -> dict[str, Fact]:
    names = ("replacement", "shuffle", "drop_last")
    found = {name: getattr(sampler, name) for name in names if hasattr(sampler, name)}
    # the share of a rank follows from the world size, which is a fact of its own
    num_samples = None if hasattr(sampler, "num_replicas") else getattr(sampler, "num_samples", None)
    if num_samples is not None and num_samples != length:
        found["num_samples"] = num_samples
    for name in ("weights", "indices"):
        if hasattr(sampler, name):
            found[name] = array_digest(getattr(sampler, name))
    found |= _own_seed(sampler)
    return {f"{place}.{name}": Fact(plain(value)) for name, value in found.items()}


def _own_seed(sampler: object) -> dict[str, int]:
    generator = getattr(sampler, "generator", None)
    seed = generator.initial_seed() if isinstance(generator, torch.Generator) else _SEED_LIMIT
    return {"seed": seed} if seed < _SEED_LIMIT else {}  # a larger one comes from entropy


class _Datasets:
    """A dataset and those inside it, for all of which one patience has to do."""

    def __init__(self) -> None:
        self._patience = Patience()

    def describe(self, dataset: Any, place: str, depth: int = 0) -> dict[str, Fact]:
        length = _dataset_length(dataset)
        facts = {f"{place}.class": Fact(class_path(dataset), "info"), f"{place}.length": Fact(length)}
        if isinstance(dataset, IterableDataset):
            facts[f"{place}.iterable"] = Fact(True)
        known = _hugging_face(dataset, place)
        inner = self._nested(dataset, place, depth) if depth < _MAX_NESTING else {}
        return facts | (known or describe_files(dataset, place, self._patience)) | inner

    def _nested(self, dataset: Any, place: str, depth: int) -> dict[str, Fact]:
        facts: dict[str, Fact] = {}
        # attributes of the instance only: looking a name up on a class may run a property of the user's
        own = getattr(dataset, "__dict__", {})
        if hasattr(own.get("indices"), "__len__"):
            facts[f"{place}.indices"] = Fact(array_digest(own["indices"]))
        inner = own.get("dataset")
        if hasattr(inner, "__getitem__") and not isinstance(inner, (str, bytes)):
            facts |= self.describe(inner, f"{place}.dataset", depth + 1)
        if isinstance(dataset, ConcatDataset):
            facts[f"{place}.lengths"] = Fact(plain([_dataset_length(part) for part in dataset.datasets]))
            for i, part in enumerate(dataset.datasets[:_MAX_PARTS]):
                facts |= self.describe(part, f"{place}.datasets.{i}", depth + 1)
        return facts


def _hugging_face(dataset: Any, place: str) -> dict[str, Fact]:
    """The digest that Hugging Face keeps of the data and of what was done to it.

    It covers a transform set on the dataset too, and is random in every process when that cannot be hashed or owns a
    generator seeded from entropy. Then the columns are compared and the digest is information.
    """
    fingerprint = getattr(dataset, "_fingerprint", None)
    if not isinstance(fingerprint, str):
        return {}
    transformed = getattr(dataset, "_format_type", None) == "custom"
    facts = {f"{place}.fingerprint": Fact(plain(fingerprint), "info" if transformed else "run")}
    if transformed:
        facts[f"{place}.columns"] = Fact(plain(sorted(getattr(dataset, "column_names", None) or ())))
    return facts


def _dataset_length(dataset: Any) -> int | None:
    return None if isinstance(dataset, IterableDataset) else _length(dataset)


def _fetching(loader: Any, prefix: str) -> dict[str, Fact]:
    found = {name: plain(getattr(loader, name)) for name in _WORKER_SETTINGS if hasattr(loader, name)}
    context = getattr(loader, "multiprocessing_context", None)
    found["multiprocessing_context"] = context and str(getattr(context, "get_start_method", lambda: context)())
    facts = {f"{prefix}.{name}": Fact(value, "info") for name, value in found.items()}
    for name in ("collate_fn", "worker_init_fn"):
        function = getattr(loader, name, None)
        facts[f"{prefix}.{name}"] = Fact(function and _function_name(function))
    return facts | _collation(getattr(loader, "collate_fn", None), f"{prefix}.collate_fn")


def _function_name(function: Any) -> str:
    name = callable_name(function)
    # where torch keeps its own is no business of a run's
    return name.rpartition(".")[2] if name.startswith("torch.utils.data.") else name


def _collation(collate: Any, place: str) -> dict[str, Fact]:
    """What was given to a partial, or to the dataclass that collators are: settings, which no use of them moves."""
    if isinstance(collate, functools.partial):
        found = callable_settings(collate)
    elif dataclasses.is_dataclass(collate) and not isinstance(collate, type):
        names = [field.name for field in dataclasses.fields(collate)]
        found = {name: value for name, value in callable_settings(collate).items() if name in names}
    else:
        return {}
    return {
        f"{place}.{name}": Fact(value, "info" if is_fleeting(name, value) else "run") for name, value in found.items()
    }
