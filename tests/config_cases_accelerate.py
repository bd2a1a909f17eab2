"""A run of `config_cases` with Accelerate."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import config_cases
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState
from accelerate.utils import DataLoaderConfiguration

from accelerate_resume import Changes, Keep, ResumePlugin, SaveEvery
from resume_core.errors import ConfigChangedError

LOG = logging.getLogger("accelerate_resume")


def train(config: dict[str, Any], root: Path, size: int) -> tuple[str | None, dict[str, Any], list[str]]:
    AcceleratorState._reset_state(reset_partial_state=size == 1)
    GradientState._reset_state()
    messages = config_cases.Messages(LOG)
    accelerator = Accelerator(
        cpu=True,
        gradient_accumulation_steps=config["accumulation"],
        mixed_precision=config["precision"],
        dataloader_config=DataLoaderConfiguration(even_batches=config["even_batches"]),
    )
    every = SaveEvery(steps=config["every"], minutes=None)
    changes = Changes(sample_ids=config["sample_ids"])
    resume = ResumePlugin(root / "ckpt", save=every, keep=Keep(last=99), changes=changes).attach(accelerator)
    accelerator.init_trackers("run", config["hparams"])
    layers = config_cases.layers_of(config)
    optimizer, schedulers = config_cases.optimizers_of(config, layers)
    parts = accelerator.prepare(layers, optimizer, config_cases.loader_of(config, root), *schedulers)
    model, prepared, loader, *steps = parts
    before = config_cases.start_of(layers)
    try:
        for _ in resume.epochs(config["epochs"]):
            for batch in loader:
                with accelerator.accumulate(model):
                    loss = model(batch.to(config["dtype"])).pow(2).mean()
                    accelerator.backward(loss)
                    prepared.step()
                    for each in steps:
                        each.step()
                    prepared.zero_grad()
                resume._session.wait()
    except ConfigChangedError as error:
        is_same = config_cases.start_of(layers) == before and not optimizer.state
        return None, config_cases.refusal(error, is_untouched=is_same), messages.close()
    return config_cases.end_of(layers, optimizer, schedulers), {"refused": {}}, messages.close()
