"""A run of `config_cases` with Lightning."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import config_cases
import lightning.pytorch as L
import torch
from lightning.pytorch.strategies import DDPStrategy
from small import QUIET, Settle

from lightning_resume import Changes, Keep, ResumeCallback, SaveEvery
from resume_core.errors import ConfigChangedError

LOG = logging.getLogger("lightning.pytorch.exact_resume")


class Net(L.LightningModule):
    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        self.layers = config_cases.layers_of(config)
        self.save_hyperparameters(config["hparams"])
        object.__setattr__(self, "config", config)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return self.layers(batch.to(self.layers[0].weight.dtype))

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        return self(batch).pow(2).mean()

    def configure_optimizers(self) -> Any:
        optimizer, schedulers = config_cases.optimizers_of(self.config, self.layers)
        return [optimizer], [{"scheduler": each, "interval": "step"} for each in schedulers]


def train(config: dict[str, Any], root: Path, size: int) -> tuple[str | None, dict[str, Any], list[str]]:
    messages = config_cases.Messages(LOG)
    net = Net(config)
    every = SaveEvery(steps=config["every"], minutes=None)
    changes = Changes(sample_ids=config["sample_ids"])
    callback = ResumeCallback(root / "ckpt", save=every, keep=Keep(last=99), changes=changes)
    ranks = {"devices": size, "strategy": DDPStrategy(process_group_backend="gloo")} if size > 1 else {}
    arguments = (
        QUIET
        | ranks
        | {
            "max_epochs": config["epochs"],
            "accumulate_grad_batches": config["accumulation"],
            "gradient_clip_val": config["clipping"],
            "precision": {"no": "32-true", "bf16": "bf16-mixed"}[config["precision"]],
            "default_root_dir": str(root),
        }
    )
    trainer = L.Trainer(**arguments, callbacks=[callback, Settle()])
    before = config_cases.start_of(net.layers)
    try:
        trainer.fit(net, config_cases.loader_of(config, root))
    except ConfigChangedError as error:
        is_same = config_cases.start_of(net.layers) == before
        num_states = sum(len(optimizer.state) for optimizer in trainer.optimizers)
        return None, config_cases.refusal(error, is_untouched=is_same and num_states == 0), messages.close()
    schedulers = [each.scheduler for each in trainer.lr_scheduler_configs]
    return config_cases.end_of(net.layers, trainer.optimizers[0], schedulers), {"refused": {}}, messages.close()
