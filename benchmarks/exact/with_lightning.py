"""With Lightning: alone as its documentation says, or with our callback."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint, OnExceptionCheckpoint
from torch.utils.data import DataLoader

from exact.data import Net, make_held_out, make_loader
from exact.job import Job, Recorder


class Module(L.LightningModule):
    """The network, as Lightning wants it."""

    def __init__(self, job: Job, recorder: Recorder) -> None:
        super().__init__()
        self.job, self.net = job, Net(job, recorder)

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> torch.Tensor:
        return self.net(**batch)["loss"]

    def validation_step(self, batch: dict[str, Any], batch_idx: int) -> None:
        self.log("val_loss", self.net(**batch)["loss"] + torch.rand(()) * 0.01, sync_dist=self.job.num_processes > 1)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), self.job.rate)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 60)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


class Begin(L.Callback):
    """Tells the recorder where training begins, and what it then asks for."""

    def __init__(self, recorder: Recorder, accumulate: int) -> None:
        self.recorder, self.accumulate = recorder, accumulate

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        batches = trainer.fit_loop.epoch_loop.batch_progress.total.completed
        self.recorder.epoch = lambda: trainer.current_epoch
        self.recorder.rate = lambda: float(trainer.optimizers[0].param_groups[0]["lr"])
        self.recorder.begin(max(batches, trainer.global_step * self.accumulate))


def _saving(job: Job, *, ours: bool) -> tuple[list[L.Callback], str | None]:
    """What saves, and the ``ckpt_path`` that goes with it: the newest file, that of an exception included."""
    if ours:
        from lightning_resume import Changes, Keep, ResumeCallback, SaveEvery

        changes = Changes(allow=("seed",) * job.allow_seed)
        save = SaveEvery(steps=job.save_every, epochs=None if job.save_every else 1)
        return [ResumeCallback(job.checkpoints, save=save, keep=Keep(last=99), changes=changes)], None
    when = {"every_n_train_steps": job.save_every} if job.save_every else {"every_n_epochs": 1}
    common = {"filename": "{step}", "save_top_k": -1}
    newest = max(job.checkpoints.glob("*.ckpt"), key=lambda path: path.stat().st_mtime_ns, default=None)
    return [ModelCheckpoint(job.checkpoints, **common, **when), OnExceptionCheckpoint(job.checkpoints)], newest and str(
        newest
    )


def train(job: Job, kind: type[DataLoader] = DataLoader, *, ours: bool = False) -> None:
    recorder = Recorder(job)
    L.seed_everything(job.seed, verbose=False)
    module = Module(job, recorder)
    saving, ckpt_path = _saving(job, ours=ours)
    trainer = L.Trainer(
        max_epochs=job.epochs,
        accumulate_grad_batches=job.accumulate,
        accelerator="cpu",
        devices=job.num_processes,
        strategy="ddp" if job.num_processes > 1 else "auto",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=job.folder,
        num_sanity_val_steps=0,
        val_check_interval=job.validate_every,
        check_val_every_n_epoch=None if job.validate_every else 1,
        limit_val_batches=None if job.validate_every else 0,
        enable_checkpointing=not ours,
        callbacks=[Begin(recorder, job.accumulate), *saving],
    )
    trainer.fit(module, make_loader(job, kind), make_held_out(), ckpt_path=ckpt_path)
    recorder.end(module.state_dict())
