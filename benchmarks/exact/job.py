"""One start of a training, and what it writes down for the parent that compares."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PAUSE_S = 60
SETTLE_S = 0.5
DIGITS = 16


@dataclasses.dataclass(frozen=True)
class Job:
    """One start.

    Attributes:
        tool: one of `tools.TOOLS`.
        folder: of the run.
        name: of this start.
        num_processes: ranks of DDP.
        save_every: optimizer steps between saves; None to save at the end of each epoch.
        validate_every: batches between validations, with one at each end of an epoch; None for none.
        pause_at: batches of the run that are done when the process begins to wait for its parent.
        settle_at: batches done when it lets a save that is under way end, so that the next one is not put off.
        slow_s: how long each batch takes from then on: the Trainer saves three seconds after a SIGTERM.
    """

    tool: str
    folder: str
    name: str = "start-1"
    seed: int = 7
    rank: int = 0
    num_processes: int = 1
    workers: int = 0
    persistent: bool = False
    order: str = "shuffled"
    num_samples: int = 64
    batch_size: int = 4
    epochs: int = 3
    accumulate: int = 1
    rate: float = 1e-2
    dropout: float = 0.5
    augmented: bool = True
    save_every: int | None = 11
    validate_every: int | None = None
    pause_at: int | None = None
    settle_at: int | None = None
    slow_s: float = 0.0
    allow_seed: bool = True

    def path(self, suffix: str) -> Path:
        return Path(self.folder, f"{self.name}.{self.rank}.{suffix}")

    @property
    def checkpoints(self) -> Path:
        return Path(self.folder, "checkpoints")

    @property
    def num_batches(self) -> int:
        """Of an epoch, on each rank."""
        return self.num_samples // self.batch_size // self.num_processes

    def but(self, **changes: Any) -> Job:
        return dataclasses.replace(self, **changes)


def digest(*tensors: Any) -> str:
    state = hashlib.sha256()
    for tensor in tensors:
        state.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return state.hexdigest()[:DIGITS]


class Recorder:
    """Writes one line for the start, one for each batch that is trained on, one for the end.

    Args:
        job: of this start.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self._file = job.path("lines").open("w")
        self._done = 0
        self.epoch: Callable[[], int] = lambda: self._done // job.num_batches
        self.rate: Callable[[], float] = lambda: float("nan")

    def _line(self, **facts: Any) -> None:
        self._file.write(json.dumps(facts) + "\n")
        self._file.flush()

    def begin(self, batches_done: int) -> None:
        """What was restored is in place."""
        self._done = batches_done
        self._line(begins_at=batches_done)

    def batch(self, ids: Any, inputs: Any, mask: Any, loss: Any) -> None:
        """A batch is in its forward pass."""
        if self._done == self._job.pause_at:
            self._pause()
        if self._done == self._job.settle_at:
            time.sleep(SETTLE_S)
        if self._job.path("go").exists():
            time.sleep(self._job.slow_s)
        facts = {"done": self._done, "epoch": self.epoch(), "ids": ids.tolist(), "rate": self.rate()}
        self._line(**facts, inputs=digest(inputs), dropout=digest(mask), loss=loss.item().hex())
        self._done += 1

    def end(self, parameters: dict[str, Any]) -> None:
        self._line(parameters=digest(*parameters.values()))

    def _pause(self) -> None:
        self._job.path("paused").touch()
        deadline = time.monotonic() + PAUSE_S
        while not self._job.path("go").exists() and time.monotonic() < deadline:
            time.sleep(0.005)


def lines(job: Job) -> list[dict[str, Any]]:
    """What a start has written down."""
    if not job.path("lines").exists():
        return []
    return [json.loads(line) for line in job.path("lines").read_text().splitlines(keepends=True) if line[-1:] == "\n"]
