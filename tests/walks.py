"""A run without a training framework that takes milliseconds: a random walk, in this process or in its own."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import harness
import torch

from resume_core import Keep, SaveEvery
from resume_core.ranks import Ranks
from resume_core.session import Session
from resume_core.state import Ending, Fact, Progress, State, Vitals


class Walk:
    """A framework of a few lines. What is lost, or taken twice, shows in the last bit of where it ends."""

    weights_bytes = 20_000
    metrics: dict[str, float] = {}  # noqa: RUF012

    def __init__(self, ranks: Ranks, limits: dict[str, float]) -> None:
        self.ranks, self.limits = ranks, limits
        self.generator = torch.Generator().manual_seed(7 + ranks.rank)
        self.place, self.speed = torch.zeros(5000), torch.zeros(3, 4).t()
        self.own = torch.zeros(2)

    def prepare(self, key: int) -> None:
        pass

    def preamble(self) -> dict[str, Any]:
        return {}

    def describe(self) -> dict[str, Fact]:
        return {"seed": Fact(7)}

    def capture(self) -> State:
        rank = {"own": self.own, "generator": self.generator.get_state()}
        return State(model={"place": self.place}, training={"speed": [self.speed]}, rank=rank)

    def live_weights(self) -> dict[str, torch.Tensor]:
        return {"place": self.place}

    def parts(self, state: State | None) -> dict[str, Any]:
        return {"weights": (self.capture() if state is None else state).model}

    def vitals(self) -> Vitals:
        return Vitals(self.capture().model, [], None, [])

    def apply(self, state: State) -> None:
        self.place.copy_(state.model["place"])
        self.speed.copy_(state.training["speed"][0])
        self.own.copy_(state.rank["own"])
        self.generator.set_state(state.rank["generator"].clone())

    def step(self) -> None:
        self.own += torch.randn(2, generator=self.generator)
        self.speed.mul_(0.9).add_(1 / 3)
        self.place.sub_(self.speed.sum()).mul_(0.7)

    def digest(self) -> str:
        return harness.digest([self.place, self.speed, self.own, self.generator.get_state()])


@dataclasses.dataclass(frozen=True)
class Start:
    """One start of the walk.

    Attributes:
        root: folder of this test, where the directory of the run lies.
        name: of this start: prefix of what it writes down.
        num_steps: over the run.
        keep: checkpoints that stay.
        num_ranks: processes that walk together.
        arguments: of `Session`, beside these.
        folders: that are watched beside the directory, when ``arguments`` names any.
    """

    root: Path
    name: str = "start"
    num_steps: int = 2
    keep: int = 1
    num_ranks: int = 1
    arguments: dict[str, Any] = dataclasses.field(default_factory=dict)
    folders: tuple[Path, ...] = ()

    @property
    def directory(self) -> Path:
        return self.root / "run"

    def note(self, rank: int = 0) -> Path:
        return self.root / f"{self.name}.{rank}.json"

    def but(self, **changes: Any) -> Start:
        return dataclasses.replace(self, **changes)

    def session(self, ranks: Ranks | None = None) -> tuple[Walk, Session]:
        walk = Walk(ranks or Ranks(), {"max_steps": self.num_steps})
        policies = {"save": SaveEvery(steps=1, minutes=None), "keep": Keep(last=self.keep)}
        return walk, Session(walk, self.directory, **(policies | self.arguments))

    def take(self, ranks: Ranks | None = None) -> dict[str, Any]:
        """Walk to the end; where that is, and which checkpoint and step it went on from."""
        walk, session = self.session(ranks)
        restored = session.start(7)
        progress = restored.progress if restored else Progress()
        if not session.is_over:
            session.begin(progress)
            for step in range(progress.step + 1, self.num_steps + 1):
                walk.step()
                progress = Progress(step=step, batch=step, is_last=step == self.num_steps)
                session._saves.writer.wait()  # a failed save is the boundary's affair
                session.boundary(progress)
            session.finish(progress, Ending("max_steps", {"max_steps": self.num_steps}))
            session.end()
        return {"end": walk.digest(), "restored": restored and [restored.ref.path, restored.progress.step]}
