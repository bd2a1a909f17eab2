"""Lightning's own handling of signals stays out while a run is watched, and comes back."""

from __future__ import annotations

import os
import signal
import time

import lightning.pytorch as L
import pytest
import torch
from lightning.pytorch.plugins.environments import SLURMEnvironment
from small import QUIET, Net, make_loader
from torch.utils.data import DataLoader, TensorDataset

from lightning_resume import Preemption, ResumeCallback, SaveEvery
from resume_core import Preempted


class Asked(Net):
    """Is sent a signal in its second batch."""

    number = signal.SIGTERM

    def training_step(self, batch, batch_idx):
        if batch_idx == 1:
            self.handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, self.number)}
            os.kill(os.getpid(), self.number)
        return super().training_step(batch, batch_idx)


def fit(tmp_path, number=signal.SIGTERM, plugins=None, **chosen):
    callback = ResumeCallback(tmp_path / "run", save=SaveEvery(minutes=None), preemption=Preemption(**chosen))
    trainer = L.Trainer(
        **QUIET | {"max_epochs": 1, "default_root_dir": str(tmp_path)}, callbacks=[callback], plugins=plugins
    )
    module = Asked()
    module.number = number
    trainer.fit(module, make_loader())
    return module


@pytest.mark.parametrize("requeues", [True, False])
def test_under_slurm_our_save_and_requeue_take_the_place_of_lightnings(tmp_path, monkeypatch, requeues):
    (tmp_path / "bin").mkdir()
    tool = tmp_path / "bin" / "scontrol"
    tool.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tool.parent), prepend=os.pathsep)
    names = {"JOB_ID": "41", "JOB_NAME": "train", "NTASKS": "1", "PROCID": "0", "LOCALID": "0", "NODEID": "0"}
    for name, value in names.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    environment = SLURMEnvironment(auto_requeue=requeues, requeue_signal=signal.SIGUSR2 if requeues else signal.SIGUSR1)
    before = signal.getsignal(signal.SIGUSR2)
    with pytest.raises(Preempted):
        fit(tmp_path, signal.SIGUSR2 if requeues else signal.SIGUSR1, plugins=[environment])
    assert signal.getsignal(signal.SIGUSR2) == before
    assert list(tmp_path.glob("**/hpc_ckpt*")) == []
    assert (tmp_path / "asked").exists() == requeues
    assert len(list(tmp_path.glob("run/*/step-000000002/manifest.json"))) == 1


def test_without_signals_lightnings_handlers_are_there(tmp_path):
    with pytest.raises(SystemExit) as left:
        fit(tmp_path, signals=())
    assert type(left.value).__name__ == "SIGTERMException"


class Validated(Net):
    """Its validations take longer than the grace; in one of them, or in a hook at an epoch's end, comes a signal."""

    def __init__(self, asked_at=None, hook=None):
        super().__init__()
        self.asked_at, self.hook, self.seen = asked_at, hook, []

    def _pause(self, hook):
        self.seen.append((hook, self.global_step))
        time.sleep(0.2)
        if (hook, self.global_step) == (self.hook, self.asked_at):
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(20)

    def on_validation_start(self):
        self._pause("validation")

    def validation_step(self, batch, batch_idx):
        pass

    def on_train_epoch_end(self):
        self._pause("end")


# 4 batches an epoch; what is measured once is met from the second time on
@pytest.mark.parametrize(
    ("hook", "asked_at", "saved"), [("validation", 4, 3), ("validation", 6, 5), ("end", 8, 8), ("validation", 8, 7)]
)
def test_a_signal_in_a_long_validation_or_epoch_end_ends_a_run_at_once_that_is_saved(
    tmp_path, hook, asked_at, saved, caplog
):
    def fit(module):
        policy = Preemption(grace_s=0.1)
        callback = ResumeCallback(tmp_path / "run", save=SaveEvery(minutes=None), preemption=policy)
        arguments = QUIET | {"max_epochs": 3, "val_check_interval": 2, "default_root_dir": str(tmp_path)}
        loaders = [
            DataLoader(TensorDataset(torch.zeros(16, 3)), batch_size=4, shuffle=train) for train in (True, False)
        ]
        L.Trainer(**arguments, callbacks=[callback]).fit(module, *loaders)
        return module

    with pytest.raises(Preempted):
        fit(Validated(asked_at, hook))
    what = "end of an epoch" if hook == "end" else hook
    assert f"SIGTERM: the run was saved before this {what}, and is not kept" in caplog.text
    newest = max(path.parent.name for path in tmp_path.glob("run/*/*/manifest.json"))
    assert newest == f"step-{saved:09d}"
    seen = fit(Validated()).seen
    assert seen[0] == (hook, asked_at)
