"""What every training of the demo writes down."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

__all__ = ["Writer", "digest"]

_BATCH_S = 0.02  # at least: between a save and the next, whoever aims a kill must see some batches go by


class Writer:
    """Writes down what one start of a training does.

    Args:
        job: what it was started with.
    """

    def __init__(self, job: Mapping[str, Any]) -> None:
        self._path, self._seed = Path(job["folder"], job["name"]), job["seed"]
        # each line is whole even if the process is killed
        self._file = os.open(f"{self._path}.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._next_s = 0.0

    def begin(self, *, begins_at: int, num_batches: int, num_samples: int) -> None:
        """What was restored is in place; nothing is trained yet."""
        self._line(begins_at=begins_at, num_batches=num_batches, num_samples=num_samples, seed=self._seed)

    def batch(
        self, *, step: int, epoch: int, batch: int, ids: torch.Tensor, inputs: Any, rate: float, loss: float
    ) -> None:
        """A batch is used up: its optimizer step is done. ``rate`` and ``loss`` are those of before the step."""
        place = {"step": step, "epoch": epoch, "batch": batch}
        self._line(**place, ids=ids.tolist(), inputs=digest(inputs), rate=rate, loss=loss)
        time.sleep(max(self._next_s - time.monotonic(), 0.0))
        self._next_s = time.monotonic() + _BATCH_S

    def end(self, *, parameters: Any, optimizer: Any, accuracy: float) -> None:
        """The training is over."""
        unfinished = Path(f"{self._path}.tmp")
        found = {"parameters": digest(parameters), "optimizer": digest(optimizer), "accuracy": accuracy}
        unfinished.write_text(json.dumps(found))
        unfinished.replace(f"{self._path}.json")

    def _line(self, **facts: Any) -> None:
        os.write(self._file, (json.dumps(facts) + "\n").encode())


def digest(state: Any) -> str:
    """SHA-256 of a nested state: of every tensor its type, shape and bytes, of every other value its text."""
    found = hashlib.sha256()

    def add(value: Any) -> None:
        if isinstance(value, torch.Tensor):
            found.update(f"{value.dtype}{tuple(value.shape)}".encode() + value.detach().contiguous().numpy().tobytes())
        elif isinstance(value, (dict, list, tuple)):
            found.update(f"{type(value).__name__}{len(value)}".encode())
            for item in value.items() if isinstance(value, dict) else value:
                add(item)
        else:
            found.update(repr(value).encode() + b"\0")

    add(state)
    return found.hexdigest()
