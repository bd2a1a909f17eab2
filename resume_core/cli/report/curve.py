"""Values of a run over its steps. What knows of more of them yields them here, and the page shows them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from resume_core.cli.divergence import no_number
from resume_core.errors import CorruptCheckpointError, ResumeError
from resume_core.storage import CheckpointRef, Lineage, PastAttempt
from resume_core.storage.manifests import read_weights_brief
from resume_core.storage.newer import by_step
from resume_core.storage.sealed import JsonMapping

__all__ = ["LOSS", "Gap", "Point", "gaps", "points"]

LOSS = "loss"
"""The name of what histories tell, beside the metrics that users log."""

_LOGGED = "loss (logged)"  # a metric of that name: the mean of an epoch, say, or of a window

_MOST = 400  # checkpoints of an attempt whose manifests are read, the newest


@dataclass(frozen=True)
class Point:
    """One value of one step.

    Attributes:
        attempt: that trained the step.
        step: optimizer steps done.
        name: of the metric.
        value: finite in what a report tells; a `Gap` stands for others.
    """

    attempt: str
    step: int
    name: str
    value: float


@dataclass(frozen=True)
class Gap:
    """Steps one after the other whose values are no finite numbers.

    Attributes:
        attempt: that trained them.
        name: of the metric.
        begin: the first of them.
        end: the last.
        value: ``"NaN"`` or ``"infinite"``, of the first.
    """

    attempt: str
    name: str
    begin: int
    end: int
    value: str


def gaps(found: Iterable[Point]) -> Iterator[Gap]:
    """Those of one attempt.

    Args:
        found: all values of it that are known, finite or not, in any order.
    """
    ordered = sorted(found, key=lambda point: (point.name, point.step))
    for (name, is_finite), run in groupby(ordered, key=lambda point: (point.name, math.isfinite(point.value))):
        if not is_finite:
            points = list(run)
            yield Gap(points[0].attempt, name, points[0].step, points[-1].step, no_number(points[0].value))


def points(lineage: Lineage, attempt: str, past: PastAttempt | None) -> Iterator[Point]:
    """What is known of one attempt, in no order: losses from its history, metrics from its checkpoints, finite or not.

    Args:
        lineage: a glance at the run.
        attempt: its folder.
        past: its history, None when it left none.

    Raises:
        OSError: the store cannot be read.
    """
    for step, value in getattr(past, "losses", ()):
        yield from _point(attempt, step, LOSS, value)
    names = sorted(lineage.names(attempt), key=by_step)
    for header in _headers(lineage, attempt, names[-_MOST:]):
        progress, metrics = header.get("progress"), header.get("metrics")
        if isinstance(progress, dict) and isinstance(metrics, dict):
            for name, value in metrics.items():
                yield from _point(attempt, progress.get("step"), _LOGGED if name == LOSS else name, value)


def _headers(lineage: Lineage, attempt: str, names: list[str]) -> Iterator[JsonMapping]:
    lineage.tiers.read_ahead(attempt, names)
    for ref in (CheckpointRef(attempt, name) for name in names):
        try:
            yield lineage.read_brief(ref).header
        except CorruptCheckpointError:
            continue
        except ResumeError:
            for store in lineage.tiers.with_weights(ref)[:1]:
                with suppress(ResumeError):
                    yield read_weights_brief(store, ref).header


def _point(attempt: str, step: Any, name: Any, value: Any) -> Iterator[Point]:
    try:
        number = float(value)  # what is not finite is text in strict JSON
    except (TypeError, ValueError, OverflowError):
        return
    if type(step) is int and step >= 0 and type(name) is str:
        yield Point(attempt, step, name, number)
