"""How often saving pays: the interval between saves that costs a run least time.

A save stops training for a while; an interruption costs what was trained since the last save that was durable. Rare
saves lose much at each interruption, frequent ones stop training all the time. Sources:

- J. W. Young, "A first order approximation to the optimum checkpoint interval", CACM 17(9), 1974.
- J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", FGCS 22(3), 2006:
  equations 20 (total wall time) and 37 (its optimum).

Both are of saves that nothing else goes on beside. Here a save is written while training goes on: what it costs is the
time that training waits (``cost_s``), and the time until it is durable only makes each interruption dearer, by the same
amount whatever the interval is, so that it moves no optimum.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["CAP", "Interval", "best_interval", "daly_s", "wall_per_work"]

CAP = 0.01
"""The share of a run's time that saving may take, unless told otherwise."""


def daly_s(cost_s: float, mtbf_s: float) -> float:
    """Daly's optimum: seconds of training between the end of a save and the begin of the next.

    Args:
        cost_s: that a save stops training.
        mtbf_s: mean time between interruptions.

    Raises:
        ValueError: a cost below 0 or a time that is not above it.
    """
    if not (cost_s >= 0 and mtbf_s > 0):
        raise ValueError(f"cost_s must be 0 or more and mtbf_s above 0, got {cost_s!r} and {mtbf_s!r}")
    if cost_s >= 2 * mtbf_s:
        return mtbf_s
    ratio = cost_s / (2 * mtbf_s)
    return math.sqrt(2 * cost_s * mtbf_s) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - cost_s


@dataclass(frozen=True)
class Interval:
    """How often to save.

    Attributes:
        seconds: of training between two saves.
        why: what decided it: ``"optimum"``, ``"store"`` (it could not take more saves) or ``"cap"``.
        optimum_s: what it would be without store and cap.
        overhead: share of the time of training that saving takes.
    """

    seconds: float
    why: str
    optimum_s: float
    overhead: float


def best_interval(cost_s: float, durable_s: float, mtbf_s: float, cap: float = CAP) -> Interval:
    """The optimum, but never more often than the store can drain, and never above ``cap``.

    Args:
        cost_s: that a save stops training.
        durable_s: from the begin of a save until it is in the directory; one is in flight at a time.
        mtbf_s: mean time between interruptions.
        cap: share of the time of training that saving may take.

    Raises:
        ValueError: a number out of range.
    """
    if not 0 < cap < 1:
        raise ValueError(f"cap must be between 0 and 1, got {cap!r}")
    optimum_s = daly_s(cost_s, mtbf_s)
    floors = {"optimum": optimum_s, "store": durable_s - cost_s, "cap": cost_s / cap - cost_s}
    why = max(floors, key=floors.__getitem__)
    seconds = floors[why]
    return Interval(seconds, why, optimum_s, cost_s / (seconds + cost_s) if cost_s else 0.0)


def wall_per_work(interval_s: float, cost_s: float, mtbf_s: float, restart_s: float = 0.0) -> float:
    """Daly's equation 20: seconds of wall time for a second of training that is kept; 1 is a run without any cost.

    Args:
        interval_s: of training between two saves.
        cost_s: that a save stops training.
        mtbf_s: mean time between interruptions, which come at random (exponentially distributed).
        restart_s: that an interruption costs beside the training that is lost: the machine, the start, the restore, and
            the time until a save is durable.
    """
    with_saves, restart = (interval_s + cost_s) / mtbf_s, restart_s / mtbf_s
    if with_saves + restart > 500:  # exp overflows; no such run ends
        return math.inf
    return mtbf_s * math.exp(restart) * math.expm1(with_saves) / interval_s
