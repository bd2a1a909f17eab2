"""Checkpoints of an Accelerate run, exported and given to stock Accelerate."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from accelerate_runs import new_job, train
from harness import digest
from typer.testing import CliRunner

from accelerate_resume import Keep, ResumePlugin, SaveEvery
from accelerate_resume._framework import AcceleratorFramework
from resume_core.cli import app


def export(url, out, *options, format="accelerate", code=0):
    result = CliRunner().invoke(app, ["export", str(url), str(out), "--format", format, *options])
    assert result.exit_code == code, result.output
    return " ".join(result.output.split())


def contents(folder):
    """What is in the files of a folder; of the weights every byte but where they lie in the file."""
    return {path.name: read(path) for path in sorted(Path(folder).iterdir())}


def read(path):
    if path.suffix == ".safetensors":
        from safetensors import safe_open

        with safe_open(path, "pt") as file:
            return file.metadata(), digest({name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118
    return digest(plain(torch.load(path, weights_only=False)))


def plain(value):
    """Arrays as tensors, so that their digest is of all they hold."""
    if isinstance(value, np.ndarray):
        return [str(value.dtype), value.tolist()]
    if isinstance(value, dict):
        return {key: plain(child) for key, child in value.items()}
    return tuple(map(plain, value)) if isinstance(value, tuple) else value


class Doubled(torch.nn.Module):
    """Tied weights, running statistics, memory in another order."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(2, 2, bias=False)
        self.last = torch.nn.Linear(2, 2, bias=False)
        self.last.weight = self.first.weight
        self.norm = torch.nn.BatchNorm1d(2)
        self.register_buffer("image", torch.rand(1, 3, 2, 2).to(memory_format=torch.channels_last))

    def forward(self, x):
        return self.norm(self.last(self.first(x)))


class Parts:
    """An Accelerator and what it has prepared: two models, two optimizers, a scheduler, a registered object."""

    def __init__(self, seed, *, num_models=2, window=1, scaler=True, compiled=False, resume=None):
        torch.manual_seed(seed), random.seed(seed), np.random.seed(seed)
        self.accelerator = Accelerator(cpu=True, gradient_accumulation_steps=window)
        if scaler:
            self.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        self.resume = None if resume is None else resume.attach(self.accelerator)
        models = [Doubled() for _ in range(num_models)]
        optimizers = [torch.optim.AdamW(model.parameters(), 0.1) for model in models]
        if compiled:
            models = [torch.compile(model, backend="eager") for model in models]
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizers[0], 20)
        loader = torch.utils.data.DataLoader(torch.rand(12, 2), 2, shuffle=True)
        self.models = [self.accelerator.prepare(model) for model in models]
        self.optimizers = [self.accelerator.prepare(optimizer) for optimizer in optimizers]
        self.schedule, self.loader = self.accelerator.prepare(schedule, loader)
        self.registered = torch.nn.Linear(1, 1)
        self.accelerator.register_for_checkpointing(self.registered)

    def train(self, num_epochs=1):
        for _ in self.resume.epochs(num_epochs):
            for batch in self.loader:
                with self.accelerator.accumulate(*self.models):
                    for model, optimizer in zip(self.models, self.optimizers, strict=True):
                        self.accelerator.backward(model(batch).pow(2).mean() + torch.rand(()))
                        optimizer.step()
                        optimizer.zero_grad()
                    self.schedule.step()
                self.resume._session.wait()

    def state(self):
        accelerator = self.accelerator
        return {
            "models": digest([dict(model.state_dict()) for model in accelerator._models]),
            "optimizers": digest([optimizer.state_dict() for optimizer in self.optimizers]),
            "schedule": self.schedule.state_dict(),
            "scaler": accelerator.scaler and accelerator.scaler.state_dict(),
            "registered": digest(dict(self.registered.state_dict())),
            "rng": digest([random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()]),
            "step": accelerator.step,
        }


@pytest.fixture
def stock(monkeypatch, tmp_path):
    """Where Accelerate itself has saved whenever the plugin captured, by batch; and the state then."""
    states, plain = {}, AcceleratorFramework.capture

    def capture(self):
        batch = self.progress.batch
        if batch not in states:
            states[batch] = current.parts.state()
            current.parts.accelerator.save_state(str(tmp_path / f"stock-{batch}"))
        return plain(self)

    monkeypatch.setattr(AcceleratorFramework, "capture", capture)

    def current(batch):
        return tmp_path / f"stock-{batch}", states[batch]

    return current


def run(tmp_path, stock, **options):
    save = {"save": SaveEvery(minutes=1e-9), "keep": Keep(last=99)}
    stock.parts = Parts(7, resume=ResumePlugin(tmp_path / "run", **save), **options)
    stock.parts.train()


def checkpoint_of(tmp_path, batch):
    for path in (tmp_path / "run").glob("attempt-*/*/manifest.json"):
        if json.loads(path.read_text())["header"]["progress"]["batch"] == batch:
            return path.parent
    raise AssertionError(f"no checkpoint after batch {batch}")


KINDS = {
    "two models with a scaler": {},
    "one model, accumulating": {"num_models": 1, "window": 3, "scaler": False},
    "one compiled model": {"num_models": 1, "scaler": False, "compiled": True},
}


SLOW = {"one compiled model"}


@pytest.mark.parametrize("kind", [pytest.param(k, marks=[pytest.mark.slow] if k in SLOW else []) for k in KINDS])
def test_the_folder_is_what_accelerate_itself_would_have_written_and_it_loads_it(tmp_path, stock, kind, caplog):
    run(tmp_path, stock, **KINDS[kind])
    said = export(checkpoint_of(tmp_path, 3), tmp_path / "out")
    folder, state = stock(3)
    assert contents(tmp_path / "out") == contents(folder)
    assert "accelerator.skip_first_batches(loader, 3)" in said
    fresh = Parts(1000, **KINDS[kind])
    assert fresh.state() != state
    fresh.accelerator.load_state(str(tmp_path / "out"))
    assert fresh.state() == state
    assert all(model.last.weight is model.first.weight for model in fresh.models)


def test_every_rank_has_its_random_states(tmp_path):
    job = new_job(tmp_path, epochs=1, stock_at=2, loading={"use_seedable_sampler": True}, save_steps=2)
    train(job, 2)
    (found,) = (tmp_path / "ckpt").glob("attempt-*/step-000000002")
    said = export(found, tmp_path / "out")
    assert {"random_states_0.pkl", "random_states_1.pkl"} <= {path.name for path in (tmp_path / "out").iterdir()}
    assert contents(tmp_path / "out") == contents(tmp_path / "stock")
    assert "counters are not in it: done=2, best=" in said
    assert "track() is not in it: average" in said


def test_the_run_of_several_ranks_is_not_exported_by_several_processes(tmp_path, stock, monkeypatch):
    run(tmp_path, stock, num_models=1)
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert "in a process of its own" in export(tmp_path / "run", tmp_path / "out", code=2)
    assert not (tmp_path / "out").exists()


def test_the_weights_alone_have_a_prefix_for_each_model(tmp_path, stock):
    from safetensors.torch import load_file

    run(tmp_path, stock)
    export(tmp_path / "run", tmp_path / "out.safetensors", format="safetensors")
    found = load_file(tmp_path / "out.safetensors")
    first = stock.parts.models[0].state_dict()
    assert set(found) == {f"{place}.{name}" for place in (0, 1) for name in first if name != "last.weight"}
    assert torch.equal(found["0.first.weight"], first["first.weight"])
