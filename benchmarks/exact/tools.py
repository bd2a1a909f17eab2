"""The tools that are compared."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from exact.job import Job


@dataclass(frozen=True)
class Tool:
    """One way to train and to go on.

    Attributes:
        title: in the tables.
        module: of this package that trains with it.
        ours: whether this project is added.
        stateful: whether the loader is torchdata's ``StatefulDataLoader``, given by the user.
        loading: arguments of Accelerate's ``DataLoaderConfiguration``.
    """

    title: str
    module: str
    ours: bool = False
    stateful: bool = False
    loading: Mapping[str, Any] = field(default_factory=dict)

    def train(self, job: Job) -> None:
        arguments: dict[str, Any] = dict(self.loading)
        if self.stateful:
            from torchdata.stateful_dataloader import StatefulDataLoader

            arguments["kind"] = StatefulDataLoader
        importlib.import_module(f"exact.{self.module}").train(job, ours=self.ours, **arguments)


TOOLS: Mapping[str, Tool] = {
    "lightning": Tool("Lightning, `ckpt_path`", "with_lightning"),
    "lightning-stateful": Tool("Lightning, StatefulDataLoader", "with_lightning", stateful=True),
    "lightning-ours": Tool("**Lightning, exact-resume**", "with_lightning", ours=True),
    "accelerate": Tool("Accelerate, `load_state`", "with_accelerate"),
    "accelerate-seedable": Tool(
        "Accelerate, `use_seedable_sampler`", "with_accelerate", loading={"use_seedable_sampler": True}
    ),
    "accelerate-stateful": Tool(
        "Accelerate, `use_stateful_dataloader`",
        "with_accelerate",
        loading={"use_stateful_dataloader": True, "use_seedable_sampler": True},
    ),
    "accelerate-ours": Tool("**Accelerate, exact-resume**", "with_accelerate", ours=True),
    "trainer": Tool("Trainer, `resume_from_checkpoint`", "with_trainer"),
    "trainer-ours": Tool("**Trainer, exact-resume**", "with_trainer", ours=True),
}
"""By their names on the command line."""


def is_ours(job: Job) -> bool:
    """Whether this project is added to what trains."""
    return TOOLS[job.tool].ours
