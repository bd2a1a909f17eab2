"""Lightning's own handling of signals stays out while a run is watched, and comes back."""

from __future__ import annotations

import os
import signal

import lightning.pytorch as L
import pytest
from lightning.pytorch.plugins.environments import SLURMEnvironment
from small import QUIET, Net, make_loader

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
