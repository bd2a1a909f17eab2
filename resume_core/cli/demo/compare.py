"""What two runs of the demo did, side by side: pure functions over what their processes wrote down.

A run that was killed has several *starts*. The batches that a start trained on after its last save were lost with it
and done again by the next, so the run's *effective* steps, those that the final weights come from, are each start's
steps up to where the next one began.
"""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Row", "Run", "Start", "Step", "compare", "coverage", "done_again", "effective", "parse_lines", "read_start"]

_FIELDS = {"order of the samples": "ids", "augmented inputs": "inputs", "learning rate": "rate", "loss": "loss"}
_DIGEST_CHARS = 12  # of a digest, shown in the table; all of it is compared


@dataclass(frozen=True)
class Step:
    """A batch that was trained on.

    Attributes:
        step: optimizer steps of the run, this one included.
        epoch: from 0.
        batch: in the epoch, from 0.
        ids: the samples, in order.
        inputs: digest of what the model was given.
        rate: the learning rate.
        loss: before the step.
    """

    step: int
    epoch: int
    batch: int
    ids: tuple[int, ...]
    inputs: str
    rate: float
    loss: float


@dataclass(frozen=True)
class Start:
    """One process of a run.

    Attributes:
        seed: its global seed.
        begins_at: optimizer steps that lay behind it when it began.
        num_batches: in an epoch.
        num_samples: of the training data.
        steps: what it trained on, in order.
    """

    seed: int
    begins_at: int
    num_batches: int
    num_samples: int
    steps: tuple[Step, ...] = ()


@dataclass(frozen=True)
class Run:
    """A training that ended, by as many starts as it took.

    Attributes:
        starts: in order; all but the last were killed.
        parameters: digest of the final weights and buffers.
        optimizer: digest of the final optimizer state.
        accuracy: on held-out data, 0 to 1.
    """

    starts: tuple[Start, ...]
    parameters: str
    optimizer: str
    accuracy: float


@dataclass(frozen=True)
class Row:
    """One line of the comparison.

    Attributes:
        name: what is compared.
        left: of the uninterrupted run, as it is shown.
        right: of the interrupted one.
        equal: None where the two are not meant to be equal.
    """

    name: str
    left: str
    right: str
    equal: bool | None


def parse_lines(text: str) -> list[dict[str, Any]]:
    """The JSON objects of the lines that are whole."""
    whole, _, _ = text.rpartition("\n")
    return [json.loads(line) for line in whole.splitlines()]


def read_start(lines: Sequence[dict[str, Any]]) -> Start:
    """A start from what it wrote: a line of its own, then one for each batch.

    Raises:
        ValueError: it wrote nothing, because it never began to train.
    """
    if not lines:
        raise ValueError("a start of the training wrote nothing down")
    steps = tuple(Step(**{**line, "ids": tuple(line["ids"])}) for line in lines[1:])
    return Start(**lines[0], steps=steps)


def _counts_until(starts: Sequence[Start]) -> list[float]:
    """Of each start the last step that went into the final weights: no later start may have begun before it."""
    begins = [*(float(start.begins_at) for start in starts[1:]), math.inf]
    return list(itertools.accumulate(reversed(begins), min))[::-1]


def effective(starts: Sequence[Start]) -> list[Step]:
    """The steps that the final weights come from."""
    untils = _counts_until(starts)
    return [step for start, until in zip(starts, untils, strict=True) for step in start.steps if step.step <= until]


def done_again(starts: Sequence[Start]) -> list[Step]:
    """The steps that came after the save which the next start went on from: lost, and done again."""
    untils = _counts_until(starts)
    return [step for start, until in zip(starts, untils, strict=True) for step in start.steps if step.step > until]


def coverage(steps: Iterable[Step], num_samples: int, num_epochs: int) -> tuple[int, int]:
    """Samples used more than once in an epoch, and samples not used in an epoch, summed over the epochs.

    Args:
        steps: effective ones.
        num_samples: that each epoch should use exactly once.
        num_epochs: that should have been trained.

    Returns:
        Repeated (each use beyond the first counts) and missed.
    """
    uses = Counter((step.epoch, sample) for step in steps for sample in step.ids)
    return sum(uses.values()) - len(uses), num_samples * num_epochs - len(uses)


def compare(reference: Run, interrupted: Run) -> list[Row]:
    """Everything that should be equal, and a few lines that explain it.

    Args:
        reference: the run that was never killed.
        interrupted: the other.
    """
    return [
        *_starts(reference, interrupted),
        *_samples(reference, interrupted),
        *_steps(reference, interrupted),
        *_first_losses(reference, interrupted),
        *_ends(reference, interrupted),
    ]


def _row(name: str, left: Any, right: Any, show: Callable[[Any], str] = str) -> Row:
    return Row(name, show(left), show(right), left == right)


def _starts(reference: Run, interrupted: Run) -> Iterable[Row]:
    lost = len(done_again(interrupted.starts))
    yield Row("global seed of each start", _seeds(reference), _seeds(interrupted), None)
    yield Row("batches lost, trained again", "0", str(lost), None)


def _seeds(run: Run) -> str:
    return ", ".join(str(start.seed) for start in run.starts)


def _samples(reference: Run, interrupted: Run) -> Iterable[Row]:
    expected, found = effective(reference.starts), effective(interrupted.starts)
    num_samples, num_epochs = reference.starts[0].num_samples, 1 + max(step.epoch for step in expected)
    counts = [coverage(steps, num_samples, num_epochs) for steps in (expected, found)]
    yield _row("samples seen", _seen(expected), _seen(found), "{:,}".format)
    for name, pair in zip(("repeated", "missed"), zip(*counts, strict=True), strict=True):
        left, right = pair
        yield Row(f"samples {name} in an epoch", f"{left:,}", f"{right:,}", left == right == 0)


def _seen(steps: Sequence[Step]) -> int:
    return sum(len(step.ids) for step in steps)


def _steps(reference: Run, interrupted: Run) -> Iterable[Row]:
    """How many of all steps, lost ones included, did what the reference did there."""
    expected = {step.step: step for step in effective(reference.starts)}
    found = [step for start in interrupted.starts for step in start.steps]
    complete = [step.step for step in effective(interrupted.starts)] == list(expected)  # none left out, none twice
    for name, field in _FIELDS.items():
        pairs = [(getattr(step, field), getattr(expected.get(step.step), field, None)) for step in found]
        same = sum(here == there for here, there in pairs)
        left, right = f"{len(expected)} steps", f"{same} of {len(found)} steps"
        yield Row(name, left, right, complete and same == len(found))


def _first_losses(reference: Run, interrupted: Run) -> Iterable[Row]:
    expected = {step.step: step.loss for step in effective(reference.starts)}
    for number, start in enumerate(interrupted.starts[1:], 1):
        for step in start.steps[:1]:
            name = f"loss at step {step.step}, after kill {number}"
            yield _row(name, expected.get(step.step), step.loss, _number)


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.9g}"  # nine digits tell any two float32 apart


def _ends(reference: Run, interrupted: Run) -> Iterable[Row]:
    def shortened(digest: str) -> str:
        return digest[:_DIGEST_CHARS]

    yield _row("accuracy on held-out data", reference.accuracy, interrupted.accuracy, "{:.4%}".format)
    yield _row("final parameters (SHA-256)", reference.parameters, interrupted.parameters, shortened)
    yield _row("final optimizer state", reference.optimizer, interrupted.optimizer, shortened)
