"""Runs inside the test process that take milliseconds."""

from __future__ import annotations

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

from accelerate_resume import Changes, Keep, ResumePlugin, SaveEvery

ALWAYS = {"save": SaveEvery(minutes=1e-9), "keep": Keep(last=99), "changes": Changes(allow=("seed",))}


def make_loader(num_samples=8, **arguments):
    return DataLoader(TensorDataset(torch.arange(float(num_samples)).unsqueeze(1)), 2, **{"shuffle": True} | arguments)


def new_parts(loader=None):
    model = torch.nn.Linear(1, 1)
    return model, torch.optim.AdamW(model.parameters(), 0.1), make_loader() if loader is None else loader


def new_run(directory, *, loader=None, **options):
    """An Accelerator, its plugin, and what they have prepared."""
    torch.manual_seed(7)
    accelerator = Accelerator(cpu=True)
    resume = ResumePlugin(directory, **ALWAYS | options).attach(accelerator)
    return accelerator, resume, *accelerator.prepare(*new_parts(loader))


def train(accelerator, model, optimizer, batch):
    loss = model(batch[0]).pow(2).mean()
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()


def train_all(run, num_epochs=1):
    accelerator, resume, model, optimizer, loader = run
    seen = []
    for _ in resume.epochs(num_epochs):
        for batch in loader:
            train(accelerator, model, optimizer, batch)
            seen.append(batch[0].flatten().tolist())
            resume._session.wait()
    return seen
