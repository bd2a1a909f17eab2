"""Changes of a run, made one at a time: what each is called, and what a small run is made of with it."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import random
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from unittest import mock

import harness
import numpy as np
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler, Subset

from resume_core.capture.provenance import package_versions
from resume_core.capture.runconfig import ABSENT
from resume_core.errors import ConfigChangedError

BASE: dict[str, Any] = {
    "seed": 7,
    "epochs": 2,
    "num_samples": 16,
    "batch_size": 2,
    "drop_last": False,
    "sampler": "shuffled",
    "collate": "plain",
    "scale": 1.0,
    "worker_init": None,
    "workers": 0,
    "loading": {},
    "files": "data",
    "fingerprint": "f00d",
    "sample_ids": list(range(16)),
    "accumulation": 1,
    "precision": "no",
    "clipping": None,
    "optimizer": "AdamW",
    "optimizer_arguments": {"lr": 0.01, "weight_decay": 0.01, "betas": (0.9, 0.999)},
    "groups": 1,
    "scheduler": "CosineAnnealingLR",
    "scheduler_arguments": {"T_max": 20, "eta_min": 0.0},
    "horizon": 30,
    "width": 4,
    "dtype": torch.float32,
    "dropout": 0.25,
    "activation": "Tanh",
    "hparams": {"smoothing": 0.1, "data_dir": "/data/one", "started": 1764510000.25, "run_name": "red-1", "workers": 0},
    "even_batches": True,
    "every": 1,
}
"""A run. Each case changes one entry, or what is around the run."""


def but(name: str, **changes: Any) -> dict[str, Any]:
    return {name: {**BASE[name], **changes}}


def switched(turn: Callable[[Any], None], value: Any, usual: Any) -> AbstractContextManager[Any]:
    @contextlib.contextmanager
    def block() -> Any:
        turn(value)
        try:
            yield
        finally:
            turn(usual)

    return block()


def patched(target: str, value: Any) -> Callable[[], AbstractContextManager[Any]]:
    return lambda: mock.patch(target, return_value=value)


def versions(**changes: str) -> Callable[[], AbstractContextManager[Any]]:
    return patched("resume_core.capture.environment.package_versions", {**package_versions(), **changes})


def rewrite(root: Path, name: str, text: str) -> None:
    (root / "data" / name).write_text(text)


# name -> (entries that change, what changes around the run, the facts that are named)
REFUSED: dict[str, tuple[dict[str, Any], Any, set[str]]] = {
    "seed": ({"seed": 8}, None, {"seed"}),
    "batch size": ({"batch_size": 4}, None, {"data.0.batch_size"}),
    "drop_last": ({"drop_last": True}, None, {"data.0.drop_last"}),
    "order": ({"sampler": "sequential"}, None, {"data.0.sampler"}),
    "replacement": ({"sampler": "replaced"}, None, {"data.0.sampler.replacement"}),
    "samples drawn": ({"sampler": "longer"}, None, {"data.0.sampler.num_samples"}),
    "batch sampler": ({"sampler": "batches"}, None, {"data.0.batch_sampler"}),
    "collate function": ({"collate": "other"}, None, {"data.0.collate_fn"}),
    "argument of collate": ({"scale": 2.0}, None, {"data.0.collate_fn.scale"}),
    "worker function": ({"worker_init": "other"}, None, {"data.0.worker_init_fn"}),
    "length": ({"num_samples": 14}, None, {"data.0.dataset.length", "data.0.dataset.indices"}),
    "size of a file": ({}, lambda root: rewrite(root, "3.txt", "33"), {"data.0.dataset.dataset.files.sizes"}),
    "name of a file": (
        {},
        lambda root: (root / "data" / "3.txt").rename(root / "data" / "3b.txt"),
        {"data.0.dataset.dataset.files", "data.0.dataset.dataset.files.sizes"},
    ),
    "fingerprint": ({"fingerprint": "beef"}, None, {"data.0.dataset.dataset.dataset.fingerprint"}),
    "ids of samples": ({"sample_ids": [*range(15), 99]}, None, {"sample_ids.digest"}),
    "accumulation": ({"accumulation": 2}, None, {"accumulate_grad_batches", "accumulation.num_steps"}),
    "precision": ({"precision": "bf16"}, None, {"precision"}),
    "clipping": ({"clipping": 0.5}, None, {"gradient_clip_val"}),
    "even batches": ({"even_batches": False}, None, {"loading.even_batches"}),
    "optimizer": ({"optimizer": "Adam"}, None, {"optimizer.0.class"}),
    "learning rate": (but("optimizer_arguments", lr=0.5), None, {"optimizer.0.lr"}),
    "weight decay": (but("optimizer_arguments", weight_decay=0.5), None, {"optimizer.0.weight_decay"}),
    "betas": (but("optimizer_arguments", betas=(0.5, 0.9)), None, {"optimizer.0.betas"}),
    "parameter groups": ({"groups": 2}, None, {"optimizer.0.num_params"}),
    "scheduler": ({"scheduler": "StepLR", "scheduler_arguments": {"step_size": 3}}, None, {"scheduler.0.class"}),
    "T_max": (but("scheduler_arguments", T_max=99), None, {"scheduler.0.T_max"}),
    "eta_min": (but("scheduler_arguments", eta_min=0.1), None, {"scheduler.0.eta_min"}),
    "horizon in a closure": ({"horizon": 60}, None, {"scheduler.1.lr_lambdas.0.horizon"}),
    "shape": ({"width": 6}, None, {"model.0.weight"}),
    "dtype": ({"dtype": torch.float64}, None, {"model.0.weight"}),
    "dropout": ({"dropout": 0.5}, None, {"modules.2"}),
    "activation": ({"activation": "ReLU"}, None, {"modules.1"}),
    "hyperparameter": (but("hparams", smoothing=0.2), None, {"hparams.smoothing"}),
    "deterministic": (
        {},
        lambda: switched(torch.use_deterministic_algorithms, True, False),
        {"environment.deterministic"},
    ),
    "matmul precision": (
        {},
        lambda: switched(torch.set_float32_matmul_precision, "high", "highest"),
        {"environment.float32_matmul_precision"},
    ),
    "cudnn.deterministic": (
        {},
        lambda: switched(lambda on: setattr(torch.backends.cudnn, "deterministic", on), True, False),
        {"environment.cudnn_deterministic"},
    ),
    "TF32": (
        {},
        lambda: switched(lambda on: setattr(torch.backends.cudnn, "allow_tf32", on), False, True),
        {"environment.cudnn_tf32"},
    ),
}
ONE_FRAMEWORK = {"clipping": "lightning", "even batches": "accelerate"}
PASSED: dict[str, tuple[dict[str, Any], Any]] = {
    "nothing": ({}, None),
    "host": ({}, patched("platform.node", "another-host")),
    "folder of the data": ({"files": "moved"}, lambda root: (root / "data").rename(root / "moved")),
    "times of files": ({}, lambda root: [os.utime(path, (1, 1)) for path in (root / "data").iterdir()]),
    "time, path and name among hyperparameters": (
        but("hparams", started=time.time(), data_dir="/data/two", run_name="red-2"),
        None,
    ),
    "a hyperparameter that is new": (but("hparams", more=1), None),
    "patch version": ({}, lambda: versions(torch="9.9.1", numpy="1.2.4")()),
    "version": ({}, lambda: versions(torch="8.8.0")()),
    "processor": ({}, patched("resume_core.capture.environment._cpu_model", "another processor")),
    "GPU": ({}, patched("resume_core.capture.environment._gpu_names", ["another GPU"])),
    "commit": (
        {},
        patched("resume_core.capture.provenance._git_state", {"commit": "0" * 40, "dirty": True, "diff": "abc"}),
    ),
    "workers": ({"workers": 1, "loading": {"prefetch_factor": 3}}, None),
    "later end": ({"epochs": 3}, None),
    "how often it saves": ({"every": 3}, None),
    "no ids of samples": ({"sample_ids": None}, None),
    "an older release": ({}, None),
}
SAVED_WITH = {
    "patch version": {"packages.torch": "9.9.0", "packages.numpy": "1.2.3"},
    "commit": {"code.commit": "1" * 40},
    "an older release": {},
}
WARNED = {
    "version": "packages.torch",
    "processor": "environment.cpu",
    "GPU": "environment.gpus",
    "commit": "code.commit",
}


def cases_of(framework: str) -> dict[str, Any]:
    refused = {name: case for name, case in REFUSED.items() if ONE_FRAMEWORK.get(name, framework) == framework}
    return refused | PASSED


# ---- the parts of a run


class Table:
    """What tells a dataset of Hugging Face from others."""

    def __init__(self, fingerprint: str) -> None:
        self._fingerprint = fingerprint

    def __getitem__(self, index: int) -> None: ...

    def __len__(self) -> int:
        return 16


class Files(Dataset):
    def __init__(self, root: Path, fingerprint: str) -> None:
        self.root = str(root)
        self.samples = [(str(path), 0) for path in sorted(root.iterdir(), key=lambda path: int(path.stem.strip("b")))]
        self.dataset = Table(fingerprint)

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> torch.Tensor:
        number = float(Path(self.samples[index][0]).read_text())
        return torch.tensor([number / 16, random.random(), torch.rand(()).item()])


def plain(samples: list[torch.Tensor], scale: float) -> torch.Tensor:
    return torch.stack(samples) * scale


def other(*args: Any, **kwargs: Any) -> torch.Tensor:
    return plain(*args, **kwargs)


class Batches(BatchSampler):
    pass


def loader_of(config: dict[str, Any], root: Path) -> DataLoader:
    data = Subset(Files(root / config["files"], config["fingerprint"]), range(config["num_samples"]))
    collate = functools.partial({"plain": plain, "other": other}[config["collate"]], scale=config["scale"])
    common = {
        "collate_fn": collate,
        "worker_init_fn": config["worker_init"] and other,
        "num_workers": config["workers"],
        **config["loading"],
    }
    size = {"batch_size": config["batch_size"], "drop_last": config["drop_last"]}
    kind = config["sampler"]
    if kind == "batches":
        return DataLoader(data, batch_sampler=Batches(RandomSampler(data), **size), **common)
    samplers = {"replaced": {"replacement": True}, "longer": {"num_samples": 20}}
    if kind in samplers:
        return DataLoader(data, sampler=RandomSampler(data, **samplers[kind]), **size, **common)
    return DataLoader(data, shuffle=kind == "shuffled", **size, **common)


def layers_of(config: dict[str, Any]) -> torch.nn.Sequential:
    width, activation = config["width"], getattr(torch.nn, config["activation"])()
    drop = torch.nn.Dropout(config["dropout"])
    return torch.nn.Sequential(torch.nn.Linear(3, width), activation, drop, torch.nn.Linear(width, 1)).to(
        config["dtype"]
    )


def optimizers_of(config: dict[str, Any], layers: torch.nn.Module) -> tuple[Any, list[Any]]:
    parameters = list(layers.parameters())
    groups = [{"params": parameters[at :: config["groups"]]} for at in range(config["groups"])]
    optimizer = getattr(torch.optim, config["optimizer"])(groups, **config["optimizer_arguments"])
    schedulers, horizon = torch.optim.lr_scheduler, config["horizon"]
    first = getattr(schedulers, config["scheduler"])(optimizer, **config["scheduler_arguments"])
    return optimizer, [first, schedulers.LambdaLR(optimizer, lambda step: 1 / (1 + step / horizon))]


def end_of(layers: Any, optimizer: Any, schedulers: list[Any]) -> str:
    rng = [random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()]
    states = [layers.state_dict(), optimizer.state_dict(), *(each.state_dict() for each in schedulers), rng]
    return harness.digest(states)


def start_of(layers: Any) -> str:
    """What a refusal must leave as it was."""
    rng = [random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()]
    return harness.digest([layers.state_dict(), rng])


def refusal(error: ConfigChangedError, *, is_untouched: bool) -> dict[str, Any]:
    named = {d.name: [_told(d.saved), _told(d.current)] for d in error.differences}
    return {"refused": named, "message": str(error), "is_untouched": is_untouched}


def _told(value: Any) -> Any:
    return "(absent)" if value is ABSENT else value


class Messages(logging.Handler):
    """What is logged from now on, warnings marked as such."""

    def __init__(self, log: logging.Logger) -> None:
        super().__init__()
        self._log, self._found = log, list[str]()
        log.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self._found.append(f"{record.levelname} {record.getMessage()}")

    def close(self) -> list[str]:
        self._log.removeHandler(self)
        super().close()
        return self._found
