"""Small scripts with ``ResumePlugin()`` inside the test process."""

from __future__ import annotations

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, TensorDataset

from accelerate_resume import Changes, ResumePlugin

NUM_BATCHES = 5


class Run:
    """One start of a script, as if in a new process."""

    def __init__(self, *, plugin=True, seed=7, dtype=torch.float32, project=None, lr=0.1, counters=True, **options):
        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()
        set_seed(seed)
        self.accelerator = Accelerator(cpu=True, project_config=project)
        self.resume = None
        if plugin:
            self.resume = ResumePlugin(**{"changes": Changes(allow=("seed",))} | options).attach(self.accelerator)
            self.counters = self.resume.counters(done=0) if counters else None
        model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Dropout(0.5), torch.nn.Linear(4, 1)).to(dtype)
        data = TensorDataset(torch.arange(30.0, dtype=dtype).reshape(10, 3) / 30)
        optimizer = torch.optim.AdamW(model.parameters(), lr)
        loader = DataLoader(data, 2, shuffle=True)
        self.model, self.optimizer, self.loader = self.accelerator.prepare(model, optimizer, loader)
        self.seen = []

    def train(self, batch):
        loss = self.model(batch[0]).pow(2).mean()
        self.accelerator.backward(loss)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.seen.append(batch[0].flatten().tolist())

    def train_epoch(self, save=lambda num_done: None, loader=None):
        for num_done, batch in enumerate(self.loader if loader is None else loader, 1):
            self.train(batch)
            save(num_done)

    def to_the_end(self, num_epochs=2):
        for _ in self.resume.epochs(num_epochs):
            self.train_epoch()
        return self

    @property
    def weights(self):
        return torch.cat([p.detach().flatten().double() for p in self.model.parameters()])

    @property
    def moments(self):
        return [v for state in self.optimizer.state_dict()["state"].values() for v in state.values()]


def saving_at(where, tmp_path, **options):
    """A whole run of two epochs that saves behind so many batches."""
    run = Run(**options)
    for epoch in run.resume.epochs(2):
        run.train_epoch(
            lambda done: (
                run.accelerator.save_state(tmp_path / "state") if epoch * NUM_BATCHES + done == where else None  # noqa: B023
            )
        )
    return run


def assert_same(run, whole):
    assert run.seen == whole.seen[len(whole.seen) - len(run.seen) :]
    assert torch.equal(run.weights, whole.weights)
    assert all(
        one.dtype == other.dtype and torch.equal(one, other)
        for one, other in zip(run.moments, whole.moments, strict=True)
    )
