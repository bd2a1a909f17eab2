"""A module and a loader for small fits inside the test process."""

from __future__ import annotations

import lightning.pytorch as L
import torch
from torch.utils.data import DataLoader, TensorDataset

from lightning_resume import ResumeCallback

QUIET = {
    "accelerator": "cpu",
    "devices": 1,
    "logger": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "enable_checkpointing": False,
}


class Net(L.LightningModule):
    """Counts what is done to it; everything that decides a run can be set."""

    def __init__(self, width=4, optimizer="AdamW", optimizer_arguments=None, scheduler="CosineAnnealingLR", horizon=20):
        super().__init__()
        self.save_hyperparameters(ignore=["stop_at", "asked_at", "hook"])  # where tests cut a start
        self.layers = torch.nn.Sequential(torch.nn.Linear(3, width), torch.nn.Linear(width, 1))
        self.num_steps = 0
        self.num_loads = 0

    def load_state_dict(self, *args, **kwargs):
        self.num_loads += 1
        return super().load_state_dict(*args, **kwargs)

    def training_step(self, batch, batch_idx):
        self.num_steps += 1
        return self.layers(batch[0]).pow(2).mean()

    def configure_optimizers(self):
        hparams = self.hparams
        arguments = {"lr": 0.01} | (hparams.optimizer_arguments or {})
        optimizer = getattr(torch.optim, hparams.optimizer)(self.parameters(), **arguments)
        kind = getattr(torch.optim.lr_scheduler, hparams.scheduler)
        return [optimizer], [{"scheduler": kind(optimizer, hparams.horizon), "interval": "step"}]


def make_loader(num_samples=16, batch_size=4, shuffle=True, **arguments):
    data = torch.arange(num_samples * 3, dtype=torch.float32).reshape(num_samples, 3) / 50
    return DataLoader(TensorDataset(data), batch_size, shuffle=shuffle, **arguments)


class Settle(L.Callback):
    """Waits at each batch until the save in flight is written, so that every boundary can save."""

    def on_train_batch_start(self, trainer, *args):
        for callback in trainer.callbacks:
            if isinstance(callback, ResumeCallback) and callback._session is not None:
                callback._session._saves.writer.wait()
