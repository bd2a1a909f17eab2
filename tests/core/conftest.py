"""A training framework of a few lines, to test the session without one; and watches of notices."""

from __future__ import annotations

import logging
import threading

import pytest
import torch
from noticing import LOG, wait_for

from resume_core.policy import Preemption
from resume_core.preemption import NoticeWatch, clouds, places
from resume_core.preemption.notices import NOTICES
from resume_core.ranks import Ranks
from resume_core.session import Session
from resume_core.state import Fact, Progress, State, Vitals


class Toy:
    """Counts in a tensor; implements `resume_core.framework.Framework`."""

    def __init__(self, ranks=None, **facts):
        self.ranks = ranks or Ranks()
        self.facts = {"seed": 7, "batch_size": 4} | facts
        self.value = torch.zeros(3)
        self.key = None
        self.applied = None
        self.extra = None
        self.limits = {}
        self.metrics = {}

    @property
    def weights_bytes(self):
        return self.value.nbytes

    def prepare(self, key):
        self.key = key

    def preamble(self):
        return {"name": self.facts["seed"]}

    def describe(self):
        return {name: Fact(value) for name, value in self.facts.items()}

    def capture(self):
        training = {"moments": [self.value * 2, {1: float("inf")}], "extra": self.extra}
        return State(model={"value": self.value}, training=training, rank={"position": [1, 2]}, info={"odd": object()})

    def live_weights(self):
        return {"value": self.value}

    def parts(self, state):
        return {"weights": {"value": self.value} if state is None else state.model}

    def vitals(self):
        return Vitals({"value": self.value}, [], None, [])

    def apply(self, state):
        self.applied = state
        self.value.copy_(state.model["value"])

    def step(self):
        self.value += 1


class Run:
    """One start of the toy job."""

    def __init__(self, directory, toy=None, **arguments):
        self.toy = toy or Toy()
        self.session = Session(self.toy, directory, **arguments)
        self.restored = self.session.start(7)
        at = self.restored.progress if self.restored else Progress()
        self.num = at.step
        self.session.begin(at)

    def train(self, num_steps, *, settle=True, in_window=False, epoch=0):
        for _ in range(num_steps):
            self.toy.step()
            self.num += 1
            if settle:
                self.session._saves.writer.wait()
            self.session.boundary(Progress(step=self.num, batch=self.num, epoch=epoch, in_window=in_window))
        return self


@pytest.fixture(params=["local", "memory"])
def directory(request, tmp_path):
    """Where the run lives: a local folder and an object store's model of one."""
    if request.param == "local":
        return str(tmp_path / "run")
    return f"memory://{tmp_path.name}-{tmp_path.parent.name}/run"


@pytest.fixture
def near(tmp_path):
    """A scratch."""
    return tmp_path / "scratch"


@pytest.fixture
def start():
    return Run


@pytest.fixture
def toy():
    return Toy


def _notice_threads():
    return {each.ident for each in threading.enumerate() if each.name == "exact-resume-notices"}


@pytest.fixture
def looks(monkeypatch, handlers, caplog):
    """Every place is looked at all the time, and no thread is left."""
    import httpx  # noqa: F401  where it is missing, no test waits for what cannot come

    caplog.set_level(logging.DEBUG, "exact_resume")
    before = _notice_threads()
    monkeypatch.delenv(NOTICES)
    for kind in (clouds.Aws, clouds.Gcp, clouds.Azure, places.File, places.Url):
        monkeypatch.setattr(kind, "every_s", 0.02)
    yield
    wait_for(lambda: _notice_threads() <= before)


@pytest.fixture
def serve():
    opened = []

    def serve(kind):
        opened.append(kind().__enter__())
        return opened[-1]

    yield serve
    for server in opened:
        server.__exit__(None, None, None)


@pytest.fixture
def watch():
    """A watch of places that has begun; ``environ`` is all of its environment."""
    begun = []

    def watch(*names, environ=None):
        begun.append(NoticeWatch(Preemption(notices=names).notices, LOG, environ or {}))
        begun[-1].start()
        return begun[-1]

    yield watch
    for each in begun:
        each.stop()
