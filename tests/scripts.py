"""The training scripts that the end-to-end tests start in processes of their own."""

from __future__ import annotations

import itertools
import logging
import random
import warnings
from collections.abc import Iterator
from typing import Any

import dying
import harness
import lightning.pytorch as L
import numpy as np
import outputs
import torch
import torchmetrics
from lightning.pytorch.callbacks import (
    BatchSizeFinder,
    EMAWeightAveraging,
    GradientAccumulationScheduler,
    LearningRateFinder,
    StochasticWeightAveraging,
)
from lightning.pytorch.loggers.logger import Logger
from lightning.pytorch.plugins.precision import MixedPrecision
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset, WeightedRandomSampler

from lightning_resume import Changes, Keep, ResumeCallback, SaveEvery


class Augmented(Dataset):
    """Samples with augmentation from every kind of generator."""

    def __init__(self, job: harness.Job, num_samples: int, name: str = "train") -> None:
        self.job, self.num_samples, self.name = job, num_samples, name
        self.generators = {"numpy": np.random.default_rng(), "torch": torch.Generator(), "python": random.Random()}

    def __len__(self) -> int:
        return self.num_samples

    def __getitem__(self, index: int) -> dict[str, Any]:
        if self.name == "train":
            harness.Recorder(self.job).read(index)
        own = self.generators
        noise = [
            random.random(),
            np.random.rand(),
            torch.rand(()).item(),
            own["numpy"].random(),
            own["python"].random(),
            torch.rand((), generator=own["torch"]).item(),
        ]
        return {"id": index, "x": torch.tensor([index / 10, *noise])}


class Net(L.LightningModule):
    """A small network with dropout, a step schedule, one on an epoch's average, and running metrics."""

    def __init__(self, job: harness.Job) -> None:
        super().__init__()
        self.job, self.recorder = job, harness.Recorder(job)
        width = job.options.get("width", 8)
        layers = [torch.nn.Linear(7, width), torch.nn.Dropout(0.5), torch.nn.Linear(width, 1)]
        self.layers = torch.nn.Sequential(*layers)
        self.noise = np.random.default_rng(7)
        self.mean = torchmetrics.MeanMetric()
        self.unsaved = torchmetrics.MaxMetric()
        if job.options.get("manual"):
            self.automatic_optimization = False

    @property
    def num_batches_done(self) -> int:
        return self.trainer.fit_loop.epoch_loop.batch_progress.total.completed

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> int | None:
        return -1 if batch_idx == self.job.options.get("leave_at") else None

    def optimizer_zero_grad(self, epoch: int, batch_idx: int, optimizer: Any) -> None:
        optimizer.zero_grad(set_to_none=not self.job.options.get("zeros"))

    def loss(self, batch: dict[str, Any]) -> torch.Tensor:
        return (self.layers(batch["x"]) - 1).pow(2).mean()

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> torch.Tensor | None:
        if "long" in batch:
            batch = {name: torch.cat([batch["long"][name], batch["short"][name]]) for name in ("id", "x")}
        done = self.num_batches_done
        if self.job.settle:
            next(c for c in self.trainer.callbacks if isinstance(c, ResumeCallback))._session.wait()
        self.recorder.pause(done)
        loss = self.loss(batch)
        if self.job.options.get("noise"):
            loss = loss * float(self.noise.random())
        self.log("total", loss, on_step=False, on_epoch=True, reduce_fx=sum, batch_size=len(batch["x"]))
        self.log("loss", loss, on_step=True, on_epoch=True, batch_size=len(batch["x"]))
        self.mean.update(loss.detach())
        self.log("mean", self.mean, on_step=False, on_epoch=True, batch_size=len(batch["x"]))
        self.unsaved.update(loss.detach())
        self.recorder.step(
            epoch=self.current_epoch,
            batch=batch_idx,
            step=self.global_step,
            ids=batch["id"].tolist(),
            x=batch["x"].tolist(),
            lr=[float(group["lr"]) for optimizer in self.trainer.optimizers for group in optimizer.param_groups],
            loss=loss.item(),
            scaler=self.trainer.precision_plugin.state_dict(),
        )
        if self.automatic_optimization:
            return loss
        optimizer = self.optimizers()
        self.manual_backward(loss)
        if not self.job.options.get("manual"):
            return None
        if (batch_idx + 1) % 2 == 0:  # so every other boundary lies inside a window that Lightning knows nothing of
            optimizer.step()
            optimizer.zero_grad()
        return None

    def on_train_epoch_end(self) -> None:
        self.recorder.pause(self.num_batches_done, in_epoch_end=True)
        self.log("max", self.unsaved.compute())
        self.unsaved.reset()
        self.recorder.step(epoch_end=self.current_epoch, ids=[])

    def validation_step(self, batch: dict[str, Any], batch_idx: int) -> None:
        loss = self.loss(batch) + torch.rand(()) * 0.01
        self.log("val_loss", loss)
        self.recorder.step(validated=batch["x"].tolist(), at=self.global_step, loss=loss.item(), ids=[])

    def configure_optimizers(self) -> Any:
        options = self.job.options
        kind = getattr(torch.optim, options.get("optimizer", "AdamW"))
        optimizer = kind(self.parameters(), lr=options.get("lr", 1e-2))
        if options.get("manual"):
            return optimizer
        kinds = torch.optim.lr_scheduler
        estimated = options.get("estimated")  # asks for the loaders while optimizers are configured
        horizon = self.trainer.estimated_stepping_batches if estimated else options.get("horizon", 60)
        by_step = {"scheduler": kinds.CosineAnnealingLR(optimizer, horizon), "interval": "step"}
        plateau = kinds.ReduceLROnPlateau(optimizer, factor=0.7, patience=0, threshold=0.3)
        return [optimizer], [by_step, {"scheduler": plateau, "monitor": "loss_epoch", "interval": "epoch"}]


class Tuned(Net):
    """Has a finder choose its learning rate and its batch size; they train without the callbacks of the run."""

    def __init__(self, job: harness.Job) -> None:
        super().__init__(job)
        self.lr, self.batch_size = 1e-2, 2

    def train_dataloader(self) -> Any:
        return train_loaders(self.job.but(batch_size=self.batch_size, num_samples=40))

    def val_dataloader(self) -> Any:
        return loaders(self.job)[1]

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> torch.Tensor | None:
        if any(isinstance(callback, ResumeCallback) for callback in self.trainer.callbacks):
            return super().training_step(batch, batch_idx)
        return self.loss(batch)

    def configure_optimizers(self) -> Any:
        self.job.options["lr"] = self.lr
        return super().configure_optimizers()

    def configure_callbacks(self) -> list[L.Callback]:
        return [
            BatchSizeFinder(max_trials=3),
            LearningRateFinder(num_training_steps=14, early_stop_threshold=None),
        ]


class Gan(Net):
    """Two optimizers that step at different times, with a scheduler each."""

    def __init__(self, job: harness.Job) -> None:
        super().__init__(job)
        self.automatic_optimization = False
        self.other = torch.nn.Linear(3, 7)

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> None:
        super().training_step(batch, batch_idx)
        by_own, by_other = self.optimizers()
        schedules = self.lr_schedulers()
        if (batch_idx + 1) % 3 == 0:
            by_other.zero_grad()
            self.manual_backward(self.layers(self.other(torch.randn(4, 3))).mean())
            by_other.step()
            schedules[1].step()
        if (batch_idx + 1) % 2 == 0:
            by_own.step()
            by_own.zero_grad()
            schedules[0].step()

    def configure_optimizers(self) -> Any:
        by_own = torch.optim.Adam(self.layers.parameters(), 0.01, betas=(0.0, 0.9))
        by_other = torch.optim.SGD(self.other.parameters(), 0.01, momentum=0.9)
        kinds = torch.optim.lr_scheduler
        return [by_own, by_other], [kinds.CosineAnnealingLR(by_own, 20), kinds.StepLR(by_other, 2, 0.9)]


class Normed(Net):
    """With a batch norm, and one schedule by the epoch: what averaging callbacks ask for."""

    def __init__(self, job: harness.Job) -> None:
        super().__init__(job)
        self.layers.insert(1, torch.nn.BatchNorm1d(job.options.get("width", 8)))

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), 0.05, momentum=0.9)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)]


class Overflowing(Net):
    """The gradients of some batches are infinite, so that a scaler skips their steps."""

    def on_after_backward(self) -> None:
        if self.num_batches_done in (0, 3, 4, 9):
            next(self.parameters()).grad.fill_(float("inf"))


class Compiled(Net):
    def __init__(self, job: harness.Job) -> None:
        super().__init__(job)
        self.layers = torch.compile(self.layers, backend="aot_eager")


MODULES = {"plain": Net, "gan": Gan, "normed": Normed, "overflowing": Overflowing, "compiled": Compiled}


class Records(Logger):
    """Writes down what is logged, epoch averages among it."""

    name, version = "records", 0

    def __init__(self, job: harness.Job) -> None:
        super().__init__()
        self.recorder = harness.Recorder(job)

    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        pass

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.recorder.step(logged=metrics, at=step, ids=[])


class RandomBatches:
    """A batch sampler of a user's own: batches of varying size, drawn from the global generators, of unknown number."""

    def __init__(self, num_samples: int) -> None:
        self.num_samples = num_samples

    def __iter__(self) -> Iterator[list[int]]:
        order = np.random.permutation(self.num_samples).tolist()
        cuts = sorted(random.sample(range(1, self.num_samples), 4))
        yield from (order[a:b] for a, b in itertools.pairwise([0, *cuts, self.num_samples]))


class NumberedBatches(RandomBatches):
    """Batches that depend on how often they were gone over, kept in a plain attribute."""

    def __init__(self, num_samples: int) -> None:
        super().__init__(num_samples)
        self.num_passes = 0

    def __iter__(self) -> Iterator[list[int]]:
        self.num_passes += 1
        order = np.roll(np.arange(self.num_samples), self.num_passes).tolist()
        yield from (order[i : i + 4] for i in range(0, self.num_samples, 4))


class CountedBatches(RandomBatches):
    """The same, with a length."""

    def __len__(self) -> int:
        return 5


def train_loaders(job: harness.Job) -> Any:
    common: dict[str, Any] = {"num_workers": job.workers, "persistent_workers": job.persistent}
    data = Augmented(job, job.num_samples)
    kind = job.options.get("loader", "shuffled")
    if kind == "batches":
        return DataLoader(data, batch_sampler=CountedBatches(job.num_samples), **common)
    if kind == "numbered":
        return DataLoader(data, batch_sampler=NumberedBatches(job.num_samples), **common)
    unsized = DataLoader(data, batch_sampler=RandomBatches(job.num_samples), **common)
    if kind == "unsized":
        return unsized
    if kind == "two unsized":  # the shorter one is cycled, and which of them was through decides when the epoch ends
        return {"long": unsized, "short": DataLoader(Augmented(job, 9, "short"), 3, shuffle=True, **common)}
    if kind == "weighted":
        sampler = WeightedRandomSampler([1.0 + i for i in range(job.num_samples)], job.num_samples)
        return DataLoader(data, job.batch_size, sampler=sampler, **common)
    shuffled = DataLoader(data, job.batch_size, shuffle=True, **common)
    if kind == "nested":
        parts = ConcatDataset([Subset(data, range(12)), Subset(Subset(data, range(8, 20)), range(4, 12))])
        return DataLoader(parts, job.batch_size, shuffle=True, **common)
    if kind == "two":  # the shorter one is cycled
        return {"long": shuffled, "short": DataLoader(Augmented(job, 6, "short"), 3, shuffle=True, **common)}
    return shuffled


def loaders(job: harness.Job) -> tuple[Any, DataLoader]:
    return train_loaders(job), DataLoader(Augmented(job, 4, "val"), 2, num_workers=job.workers and 1)


OTHERS = {
    "scheduled windows": lambda: GradientAccumulationScheduler({0: 1, 1: 2, 2: 3}),
    "swa": lambda: StochasticWeightAveraging(0.1, swa_epoch_start=2, annealing_epochs=2),
    "ema": lambda: EMAWeightAveraging(decay=0.9, update_every_n_steps=2),
}


def callbacks(job: harness.Job) -> list[L.Callback]:
    others = [OTHERS[name]() for name in job.options.get("others", ())] + outputs.callbacks(job)
    others += [getattr(L.callbacks, name)(**given) for name, given in job.options.get("stock", {}).items()]
    if not job.plugin:
        return others
    if "saver" in job.options:  # Lightning's own checkpoints, and no directory
        saver = L.callbacks.ModelCheckpoint(job.directory, save_top_k=-1, **job.options["saver"])
        return [*others, ResumeCallback(changes=Changes(allow=job.allow, otherwise=job.otherwise)), saver]
    return [
        *others,
        ResumeCallback(
            job.directory,
            scratch=job.scratch,
            resume=job.resume,
            save=SaveEvery(steps=job.save_steps, minutes=None if job.save_steps else 1e-9),
            keep=Keep(last=job.keep),
            changes=Changes(allow=job.allow, otherwise=job.otherwise),
            check=job.options.get("check"),
            watch=job.options.get("watch"),
            storage_options=job.options.get("storage_options"),
        ),
    ]


def trainer_of(job: harness.Job) -> L.Trainer:
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3)
    arguments = {
        "max_epochs": job.epochs,
        "accelerator": "cpu",
        "devices": 1,
        "logger": Records(job),
        "log_every_n_steps": 2,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "enable_checkpointing": "saver" in job.options,
        "num_sanity_val_steps": 1,
        "default_root_dir": job.root,
        "plugins": [MixedPrecision("16-mixed", "cpu", scaler=scaler)] if job.options.get("scaler") else None,
    }
    arguments |= outputs.arguments(job) | job.options.get("trainer", {})
    return L.Trainer(**arguments, callbacks=callbacks(job))


def run(job: harness.Job) -> None:
    warnings.filterwarnings("ignore", ".*does not have many workers.*|.*This DataLoader will create.*|.*smaller than.*")
    logging.getLogger("lightning.pytorch").setLevel(logging.INFO)
    torch.set_num_threads(1)
    if "die" in job.options:
        dying.die(**job.options["die"])
    L.seed_everything(job.seed, verbose=False)
    net = Tuned(job) if job.script == "tuned" else MODULES[job.options.get("module", "plain")](job)
    trainer = trainer_of(job)
    for end in job.options.get("fits", [None]):
        trainer.fit_loop.max_epochs = end or trainer.fit_loop.max_epochs
        given = () if job.script == "tuned" else loaders(job)
        trainer.fit(net, *given, ckpt_path=job.options.get("ckpt_path"))
    net.recorder.end(
        parameters=harness.digest(net.state_dict()),
        optimizers=harness.digest([optimizer.state_dict() for optimizer in trainer.optimizers]),
        schedulers=harness.digest([config.scheduler.state_dict() for config in trainer.lr_scheduler_configs]),
        metrics={name: float(value) for name, value in sorted(trainer.callback_metrics.items())},
        rng=harness.digest([random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()]),
        step=trainer.global_step,
        epoch=trainer.current_epoch,
    )
