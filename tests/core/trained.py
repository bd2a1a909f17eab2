"""A run of a framework of a few lines that trains one parameter, and tells of what it does."""

from __future__ import annotations

import torch

from resume_core import Check, SaveEvery
from resume_core.ranks import Ranks
from resume_core.session import Session
from resume_core.state import Fact, Progress, State, Vitals


class Trained:
    """Implements `resume_core.framework.Framework`."""

    def __init__(self, ranks=None):
        self.ranks, self.limits, self.metrics = ranks or Ranks(), {}, {}
        self.parameter = torch.nn.Parameter(torch.zeros(3))
        self.optimizer = torch.optim.SGD([self.parameter], lr=0.5)
        self.position, self.shift = 0, 0
        self.weights_bytes = self.parameter.nbytes

    @property
    def value(self):
        return self.parameter.data

    def prepare(self, key):
        pass

    def preamble(self):
        return {}

    def describe(self):
        return {"seed": Fact(7)}

    def capture(self):
        return State(model={"value": self.value}, training={"lrs": self.rates}, rank={})

    def live_weights(self):
        return {"value": self.value}

    def apply(self, state):
        self.value.copy_(state.model["value"])

    def parts(self, state):
        if state is None:
            return {"weights": {"value": self.value}, "lrs": self.rates}
        return {"weights": {"value": state.model["value"]}, **state.training}

    @property
    def rates(self):
        return [group["lr"] for group in self.optimizer.param_groups]

    def vitals(self):
        at = self.position
        where = {"loader": 0, "pass": 0, "num_batches": at, "position": 4 * at, "ids": [at], "num_samples": 4}
        return Vitals({"value": self.parameter}, [self.optimizer], None, [where])


class Run:
    """One start of it, that saves at each fifth step."""

    def __init__(self, directory, ranks=None, **options):
        self.toy = Trained(ranks)
        options = {"save": SaveEvery(steps=5, minutes=None), "check": Check(), **options}
        self.session = Session(self.toy, directory, **options)
        self.restored = self.session.start(7)
        at = self.restored.progress if self.restored else Progress()
        self.num = self.toy.position = at.step
        self.session.begin(at)

    def train(self, num_steps, loss=1.0):
        observer, toy = self.session.observer, self.toy
        for _ in range(num_steps):
            self.num += 1
            toy.position = self.num + toy.shift
            observer.batch({"x": torch.full((4,), float(self.num))})
            toy.parameter.grad = torch.full((3,), float(self.num))
            observer.loss(torch.tensor(loss + self.num / 8))
            observer.gradients(toy.optimizer)
            toy.optimizer.step()
            self.session._saves.writer.wait()
            self.session.boundary(Progress(step=self.num, batch=self.num))
        return self
