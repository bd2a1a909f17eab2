"""How the packages are used, for `mypy --strict` (`make lint`): never run, and right as long as the checker says so."""

from __future__ import annotations

import lightning.pytorch as L
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset
from transformers import Trainer

import resume_core
from accelerate_resume import ResumePlugin, TrainerResumeCallback
from lightning_resume import Changes, Keep, Preemption, ResumeCallback, SaveEvery
from resume_core import ConfigChangedError, Preempted, ResumeError, SaveFailedError, register_leaf


class Temperature:
    """A value of a user's own."""

    def __init__(self, value: float) -> None:
        self.value = value


def values_of_their_own() -> None:
    register_leaf(Temperature, lambda temperature: temperature.value, Temperature)
    register_leaf(Temperature, lambda temperature: [temperature.value], lambda found: Temperature(*found), name="t")


def policies() -> tuple[SaveEvery, Keep, Changes, Preemption]:
    save = SaveEvery(steps=500, minutes=None, mtbf_hours=2.5, max_overhead=0.02, epochs=1)
    keep = Keep(last=2, every_steps=1000, every_epochs=1, best="val_loss", mode="max", thin_after=10)
    changes = Changes(allow=("seed", "data.0.batch_size"), otherwise="warn")
    preemption = Preemption(signals=("SIGTERM",), grace_s=90, max_hours=2, exit_code=0, requeue=False, notices=None)
    return save, keep, changes, preemption


def with_lightning(module: L.LightningModule, data: DataLoader[int]) -> None:
    save, keep, changes, preemption = policies()
    first = ResumeCallback("runs/first", scratch="/dev/shm/first", resume="must", save=save, keep=keep)
    second = ResumeCallback("s3://bucket/run", changes=changes, preemption=preemption, storage_options={"profile": "a"})
    callbacks: list[L.Callback] = [first, second, ResumeCallback()]
    from_a_file = ResumeCallback("runs/first", save={"steps": 500}, keep={"last": 2}, changes={"allow": ["seed"]})
    trainer = L.Trainer(callbacks=[*callbacks, from_a_file])
    try:
        trainer.fit(module, data)
    except ConfigChangedError as error:
        print(error.differences, error.path, error.step)
    except (SaveFailedError, ResumeError) as error:
        print(error.path)
    except Preempted as left:
        print(left.code)


def with_accelerate() -> float:
    accelerator = Accelerator()
    resume: ResumePlugin = ResumePlugin("runs/first", save=SaveEvery(steps=20)).attach(accelerator)
    counters = resume.counters(step=0, best=float("inf"))
    model = torch.nn.Linear(2, 1)
    resume.track(ema=torch.nn.Linear(2, 1))
    loader = accelerator.prepare(DataLoader(TensorDataset(torch.zeros(4, 2))))
    for epoch in resume.epochs(3):
        for (x,) in loader:
            counters.best = min(counters.best, model(x).sum().item() + epoch)
            counters.step += 1
            resume.save()
    for epoch in range(resume.restore(), 3):
        print(epoch)
    best: float = counters.best
    return best


def with_the_trainer(trainer: Trainer) -> None:
    callback = TrainerResumeCallback("runs/first", save=SaveEvery(epochs=1))
    callback.attach(trainer)
    print(resume_core.__version__)
