"""Runs that write down all that happens in them, and the comparison of a resumed run with the rest of a whole one."""

from __future__ import annotations

import itertools
import random
import shutil
from pathlib import Path

import lightning.pytorch as L
import numpy as np
import torch
import torchmetrics
from harness import digest
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from lightning.pytorch.loggers.logger import Logger
from lightning_utilities.core.apply_func import apply_to_collection
from small import QUIET
from torch.utils.data import DataLoader, Dataset

from lightning_resume import Changes, ResumeCallback

HOOKS = [
    "on_train_epoch_start", "on_train_batch_start", "on_before_optimizer_step", "on_train_batch_end",
    "on_validation_start", "on_validation_epoch_start", "on_validation_batch_end", "on_validation_epoch_end",
    "on_validation_end", "on_train_epoch_end", "on_train_end",
]  # fmt: skip


class Data(Dataset):
    """Samples with augmentation."""

    def __init__(self, num_samples):
        self.num_samples = num_samples

    def __len__(self):
        return self.num_samples

    def __getitem__(self, index):
        return {"id": index, "x": torch.tensor([index / 10, random.random(), np.random.rand(), torch.rand(()).item()])}


class Batches:
    """Batches of varying size from the global generators, of unknown number."""

    def __iter__(self):
        order = np.random.permutation(20).tolist()
        cuts = sorted(random.sample(range(1, 20), 4))
        yield from (order[a:b] for a, b in itertools.pairwise([0, *cuts, 20]))


def train_loader(workers, batches):
    data = Data(20)
    if batches:
        return DataLoader(data, batch_sampler=Batches(), num_workers=workers)
    return DataLoader(data, 4, shuffle=True, num_workers=workers)


class Net(L.LightningModule):
    """Dropout, schedules by step and on metrics, running averages; every hook that is named is recorded."""

    def __init__(
        self, *, manual=False, plateau="loss_epoch", interval="epoch", overrides=(), saves_in="", leave_at=None
    ):
        super().__init__()
        self.events = []
        self.leave_at, self.saves_in = leave_at, saves_in
        self.automatic_optimization = not manual
        self.plateau, self.interval = plateau, interval
        self.layers = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))
        self.mean = torchmetrics.MeanMetric()
        for hook in overrides:
            setattr(self, hook, self._recorder(hook))

    def _recorder(self, hook):
        def record(*arguments):
            self.note("module " + hook, values=[digest(argument) for argument in arguments])
            if hook == "on_train_batch_end":
                self.log("from_hook", arguments[0]["loss"] * 2, on_step=True, on_epoch=True)
            elif hook in ("on_train_epoch_end", "on_validation_epoch_end"):
                self.log(hook, torch.rand(()))
            if hook == self.saves_in and not self.trainer.sanity_checking:
                next(c for c in self.trainer.callbacks if isinstance(c, Hooks)).save(self.trainer)

        return record

    def on_train_batch_start(self, batch, batch_idx):
        return -1 if batch_idx == self.leave_at else None

    def note(self, what, **facts):
        self.events.append({"what": what, "step": self.global_step, "epoch": self.current_epoch, **facts})

    def training_step(self, batch, batch_idx):
        loss = (self.layers(batch["x"]) - 1).pow(2).mean()
        self.log("loss", loss, on_step=True, on_epoch=True)
        self.mean.update(loss.detach())
        self.log("mean", self.mean, on_step=False, on_epoch=True)
        rates = [group["lr"] for group in self.trainer.optimizers[0].param_groups]
        self.note("train", ids=batch["id"].tolist(), x=batch["x"].tolist(), lr=rates, loss=loss.item())
        if self.automatic_optimization:
            return loss
        optimizer = self.optimizers()
        self.manual_backward(loss)
        if batch_idx % 2:
            optimizer.step()
            optimizer.zero_grad()
        return {"loss": loss.detach()}

    def validation_step(self, batch, batch_idx):
        loss = (self.layers(batch["x"]) - 1).pow(2).mean() + torch.rand(())
        self.log("val", loss)
        self.note("validate", x=batch["x"].tolist(), loss=loss.item(), training=self.layers[1].training)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), 1e-2)
        if not self.automatic_optimization:
            return optimizer
        kinds = torch.optim.lr_scheduler
        by_step = {"scheduler": kinds.CosineAnnealingLR(optimizer, 60), "interval": "step"}
        by_epoch = {"scheduler": kinds.StepLR(optimizer, 1, 0.9), "interval": "epoch"}
        plateau = kinds.ReduceLROnPlateau(optimizer, factor=0.7, patience=0, threshold=0.3)
        on_metric = {"scheduler": plateau, "monitor": self.plateau, "interval": self.interval, "strict": False}
        return [optimizer], [by_step, by_epoch, on_metric]


class Hooks(L.Callback):
    """Records every hook, and saves in some."""

    def __init__(self, save_in="", folder=None):
        self.save_in, self.folder = save_in, folder

    def save(self, trainer):
        total = trainer.fit_loop.epoch_loop.batch_progress.total.processed
        trainer.save_checkpoint(self.folder / f"after-{total}.ckpt")


def _hook(name):
    def hook(self, trainer, module, *arguments):
        if not trainer.sanity_checking:
            metrics = {key: float(value) for key, value in sorted(trainer.callback_metrics.items())}
            module.note(name, metrics=metrics, training=module.layers[1].training, rng=torch.rand(()).item())
            if name == self.save_in:
                self.save(trainer)

    return hook


for _name in HOOKS:
    setattr(Hooks, _name, _hook(_name))


class Records(Logger):
    """What a logger is given."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    name, version = "records", "0"

    def log_hyperparams(self, *arguments, **keywords):
        pass

    def log_metrics(self, metrics, step=None):
        self.net.events.append({"what": "logged", "metrics": metrics, "at": step})


class Lab:
    """One training, saved in many places, each of which is resumed from.

    Args:
        root: folder of the test.
        net: arguments of the module.
        workers: of the train loader.
        callbacks: made for each run, given the folder of checkpoints.
        batches: the train loader has a batch sampler of unknown length.
        trainer: arguments of the Trainer.
    """

    def __init__(self, root, *, net=None, workers=0, callbacks=None, batches=False, **trainer):
        self.root, self.folder = Path(root), Path(root) / "checkpoints"
        self.net, self.workers, self.batches = net or {}, workers, batches
        self.callbacks = callbacks or (lambda folder: [ModelCheckpoint(folder, every_n_train_steps=1, save_top_k=-1)])
        self.trainer = {"max_epochs": 3} | trainer
        self.saves = {}  # label (file name, and how often it was written before): number of events before it

    def run(self, ckpt_path=None, seed=7, workers=None, callback=None, **trainer):
        L.seed_everything(seed, verbose=False)
        net = Net(**self.net)
        resume = callback or ResumeCallback(changes=Changes(allow=("seed",)))
        arguments = QUIET | {"log_every_n_steps": 2, "num_sanity_val_steps": 1, "enable_checkpointing": True}
        made = L.Trainer(
            **arguments | self.trainer | trainer | {"logger": Records(net), "default_root_dir": str(self.root)},
            callbacks=[resume, *self.callbacks(self.folder)],
        )
        self.net_now, self.trainer_now = net, made
        plain = made.save_checkpoint

        def save(path, *arguments, **keywords):
            net.events.append({"what": "saved", "name": Path(path).name})
            plain(path, *arguments, **keywords)
            self.saved(Path(path).name, net)

        made.save_checkpoint = save
        train = train_loader(self.workers if workers is None else workers, self.batches)
        made.fit(net, train, DataLoader(Data(6), 4), ckpt_path=ckpt_path)
        return net, made

    def saved(self, name, net):
        """Keep the folder as it was right after this save: what a kill at this moment leaves."""
        if net is getattr(self, "whole", net):
            self.whole = net
            label = f"{name}@{sum(label.startswith(name + '@') for label in self.saves)}"
            self.saves[label] = len(net.events)
            shutil.copytree(self.folder, self.root / "at" / label, symlinks=True)

    def train(self):
        self.run()
        self.end = self.ending()
        return self

    def ending(self):
        trainer, net = self.trainer_now, self.net_now
        kept = [c for c in trainer.callbacks if isinstance(c, (ModelCheckpoint, EarlyStopping))]
        states = [c.state_dict() | {"current_score": None} for c in kept]
        # Lightning loads scores of callbacks to the host, wherever they were
        states = apply_to_collection(states, torch.Tensor, torch.Tensor.cpu)
        saved = [c._last_global_step_saved for c in kept if isinstance(c, ModelCheckpoint)]
        return {
            "parameters": digest(net.state_dict()),
            "optimizers": digest([optimizer.state_dict() for optimizer in trainer.optimizers]),
            "schedulers": [config.scheduler.state_dict() for config in trainer.lr_scheduler_configs],
            "callbacks": repr(states) + repr(saved),
            "metrics": {name: float(value) for name, value in sorted(trainer.callback_metrics.items())},
            "rng": digest([random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()]),
            "step": trainer.global_step,
            "epoch": trainer.current_epoch,
            "counters": trainer.fit_loop.epoch_loop.batch_progress.state_dict(),
            "stepped": trainer.fit_loop.epoch_loop._batches_that_stepped,
            "should_stop": trainer.should_stop,
        }

    def resume(self, label, **changes):
        """Go on from a save as after a kill right after it."""
        shutil.rmtree(self.folder)
        shutil.copytree(self.root / "at" / label, self.folder, symlinks=True)
        return self.run(ckpt_path=str(self.folder / label.partition("@")[0]), seed=11, **changes)

    def check(self, label, **changes):
        """The resumed run is the rest of the whole one."""
        net, _ = self.resume(label, **changes)
        expected = self.whole.events[self.saves[label] :]
        for place, (found, wanted) in enumerate(zip(net.events, expected, strict=False)):
            assert found == wanted, (label, place)
        assert len(net.events) == len(expected), (label, net.events[len(expected) :], expected[len(net.events) :])
        ending = self.ending()
        changed = {key: (found, self.end[key]) for key, found in ending.items() if found != self.end[key]}
        assert not changed, (label, changed)

    def check_all(self, **changes):
        assert self.saves
        for label in self.saves:
            self.check(label, **changes)
