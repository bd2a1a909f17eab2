"""From which step on the loss of an attempt was no finite number, and what was saved before that.

The first step without one is always among the losses that a history tells of, however few of them are kept. An attempt
that went on from behind that step has no other loss from its beginning on, so that its line is followed to where it
was lost.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from resume_core.storage import Attempt, CheckpointRef, Lineage, PastAttempt
from resume_core.storage.newer import by_step

__all__ = ["Divergence", "find_divergence", "no_number"]


@dataclass(frozen=True)
class Divergence:
    """Where a line lost its loss.

    Attributes:
        step: the first whose loss is no finite number; none behind it has another, as far as its history tells.
        value: ``"NaN"`` or ``"infinite"``.
        last_save: path of the newest checkpoint of before that is still there; None where there is none.
        text: all of that as a clause.
    """

    step: int
    value: str
    last_save: str | None
    text: str


def no_number(value: float) -> str:
    """A word for a number that is not finite."""
    return "NaN" if math.isnan(value) else "infinite"


def find_divergence(
    lineage: Lineage, attempt: Attempt, attempts: Iterable[Attempt], past_of: Callable[[str], PastAttempt | None]
) -> Divergence | None:
    """Where the loss that an attempt ends with was lost; None where its newest is a number, or none is known.

    Args:
        lineage: of the run.
        attempt: the one that is asked about.
        attempts: all that can be read.
        past_of: gives the history of the attempt with such a name.

    Raises:
        OSError: the store cannot be read.
    """
    by_name = {one.name: one for one in attempts}
    found: tuple[int, str] | None = None
    owner, one, limit = attempt, by_name.get(attempt.name), math.inf
    while one is not None and (lost := _lost(past_of(one.name), limit)) is not None:
        step, value, is_all = lost
        found, owner, origin = (step, value), one, one.restored_from
        if origin is None or not is_all:
            break
        one, limit = by_name.get(origin.attempt), by_step(origin.name)[0]
    if found is None:
        return None
    save = _last_save(lineage, owner, by_name, found[0])
    before = f"the last save before it is step {by_step(save.name)[0]}" if save else "no save from before it is left"
    return Divergence(*found, save.path if save else None, f"the loss is {found[1]} from step {found[0]} on; {before}")


def _lost(past: PastAttempt | None, limit: float) -> tuple[int, str, bool] | None:
    """The step and value that the losses up to a step end with, where that is no number, and whether none is one."""
    losses = [] if past is None else [(step, loss) for step, loss in past.losses if step <= limit]
    last = max((place for place, (_, loss) in enumerate(losses) if math.isfinite(loss)), default=-1)
    if last + 1 >= len(losses):
        return None
    step, loss = losses[last + 1]
    return step, no_number(loss), last < 0


def _last_save(lineage: Lineage, attempt: Attempt, by_name: dict[str, Attempt], step: int) -> CheckpointRef | None:
    """The newest committed checkpoint of a line that was taken before a step."""
    one: Attempt | None = attempt
    limit = (step, 0)
    while one is not None:
        names = [name for name in lineage.names(one.name) if by_step(name) < limit]
        for name in sorted(names, key=by_step, reverse=True):
            ref = CheckpointRef(one.name, name)
            if lineage.tiers.committed(ref):
                return ref
        origin = one.restored_from
        if origin is None:
            return None
        number, place = by_step(origin.name)
        one, limit = by_name.get(origin.attempt), min(limit, (number, place + 1))
    return None
