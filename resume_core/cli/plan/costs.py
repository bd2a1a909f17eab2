"""What saving every so often costs, from Daly's model of the wall time (``resume_core.cadence``), taken apart."""

from __future__ import annotations

import math
from dataclasses import dataclass

from resume_core.cadence import Interval, best_interval, wall_per_work
from resume_core.cli.plan.inputs import Inputs

__all__ = ["Costs", "Point", "Space", "costs_of", "ladder", "named_points", "space_of"]

_DAY_S = 86400.0
_NUM_POINTS = 161
_WIDTH = 30.0  # the curve goes from the interval divided by this to the interval times this
_LADDER = 15.0  # likewise the intervals that are listed
_RUNGS_S = (
    *(1e-3, 3e-3, 0.01, 0.03, 0.1, 0.3),
    *(1, 3, 10, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 28800, 57600),
    *(_DAY_S * days for days in (1, 2, 4, 8, 16, 32, 64, 128, 365, 1000, 3000, 10000)),
)


@dataclass(frozen=True)
class Point:
    """What one interval costs. The shares are of the wall time, and with the training that is kept they make 1.

    Attributes:
        interval_s: of training between the end of a save and the begin of the next.
        saving: share in which training waits for saves.
        again: share in which it trains what it had trained before.
        restarting: share in which machines are got, and the job starts and restores.
        loss_s: what an interruption costs on average, in seconds of wall time: again, and until it trains.
        worst_loss_s: the same at the worst moment.
        is_possible: whether the store can take saves that often.
    """

    interval_s: float
    saving: float
    again: float
    restarting: float
    loss_s: float
    worst_loss_s: float
    is_possible: bool

    @property
    def lost(self) -> float:
        """Share of the wall time that is not training that is kept."""
        return min(self.saving + self.again + self.restarting, 1.0)


@dataclass(frozen=True)
class Costs:
    """How often saving pays.

    Attributes:
        interval: the one to take.
        best: its cost.
        optimum: the cost of the interval without store and cap.
        current: the cost of how often the run saves; None where that is not known.
        curve: over intervals, on a logarithmic scale.
    """

    interval: Interval
    best: Point
    optimum: Point
    current: Point | None
    curve: list[Point]


@dataclass(frozen=True)
class _Model:
    blocking_s: float
    durable_s: float
    drain_s: float
    mtbf_s: float
    restart_s: float

    def point(self, interval_s: float) -> Point:
        """Daly's equation 20, taken apart: the factor of the restarts, the saves that count, and the rest."""
        period_s, open_s = interval_s + self.blocking_s, self.durable_s - self.blocking_s
        wall = wall_per_work(interval_s, self.blocking_s, self.mtbf_s, self.restart_s + open_s)
        kept = 1 / wall if math.isfinite(wall) else 0.0
        waiting = -math.expm1(-(self.restart_s + open_s) / self.mtbf_s)
        restarting = waiting * self.restart_s / (self.restart_s + open_s) if waiting else 0.0
        saving = kept * self.blocking_s / interval_s
        again = max(1 - kept - saving - restarting, 0.0)
        mean_s = _mean_in_period(period_s, self.mtbf_s) + open_s + self.restart_s
        worst_s = period_s + open_s + self.restart_s
        return Point(interval_s, saving, again, restarting, mean_s, worst_s, period_s >= self.drain_s * (1 - 1e-9))


def _mean_in_period(period_s: float, mtbf_s: float) -> float:
    """Seconds since a period began, on average, when an interruption falls into it: a bit less than half of it."""
    ratio = period_s / mtbf_s
    if ratio < 1e-5:
        return period_s / 2
    return mtbf_s - (period_s / math.expm1(ratio) if ratio < 500 else 0.0)


def _model(inputs: Inputs) -> _Model:
    return _Model(inputs.blocking_s, inputs.durable_s, inputs.drain_s, inputs.mtbf_s, inputs.restart_s)


def costs_of(inputs: Inputs) -> Costs:
    """The interval to take, and what it costs beside others."""
    model = _model(inputs)
    interval = best_interval(inputs.blocking_s, inputs.drain_s, inputs.mtbf_s, inputs.max_overhead)
    current_s = inputs.run.interval_s if inputs.run else None
    current = model.point(current_s) if current_s else None
    begin, end = _range(interval.seconds, interval.optimum_s, current)
    steps = [begin * (end / begin) ** (place / (_NUM_POINTS - 1)) for place in range(_NUM_POINTS)]
    return Costs(
        interval,
        model.point(interval.seconds),
        model.point(interval.optimum_s),
        current,
        [model.point(interval_s) for interval_s in steps],
    )


def _range(interval_s: float, optimum_s: float, current: Point | None) -> tuple[float, float]:
    shown = [interval_s, optimum_s, *([current.interval_s] if current else [])]
    return min(interval_s / _WIDTH, *shown), max(interval_s * _WIDTH, *shown)


def ladder(costs: Costs, inputs: Inputs) -> list[tuple[str, Point]]:
    """Round intervals around the one to take, and those that have a name; the shortest first."""
    model, best_s = _model(inputs), costs.best.interval_s
    named = list(named_points(costs))
    rungs = [rung for rung in _RUNGS_S if best_s / _LADDER <= rung <= best_s * _LADDER]
    free = [rung for rung in rungs if not any(0.8 < rung / point.interval_s < 1.25 for _, point in named)]
    return sorted([*(("", model.point(rung)) for rung in free), *named], key=lambda each: each[1].interval_s)


def named_points(costs: Costs) -> list[tuple[str, Point]]:
    """The interval to take, the optimum where that is another one, and how often the run saves."""
    optimum = [] if costs.interval.why == "optimum" else [("optimum", costs.optimum)]
    current = [] if costs.current is None else [("now", costs.current)]
    return [("plan", costs.best), *optimum, *current]


@dataclass(frozen=True)
class Space:
    """What the directory needs.

    Attributes:
        num_newest: whole checkpoints that stay for going on.
        num_writing: the one that is being written.
        num_milestones: that stay whole beside them, at the end of the run.
        num_best: the best by a metric, 1 or 0; it counts as whole.
        num_thinned: of which only the weights are left, at the end of the run.
        size_bytes: of all of it.
        price_per_month: None without a price.
    """

    num_newest: int
    num_writing: int
    num_milestones: int
    num_best: int
    num_thinned: int
    size_bytes: int
    price_per_month: float | None


def space_of(inputs: Inputs) -> Space:
    """What `Keep` leaves at the end of the run, and one more: an old one goes when the new one is there."""
    last = int(inputs.keep.last)
    # the newest ones are no milestones yet, and a milestone is whole until so many newer checkpoints exist
    num_all = math.floor(inputs.milestones_per_day * inputs.run_s / _DAY_S + 1e-9)
    num_whole = num_all if inputs.thin_after is None else min(num_all, max(inputs.thin_after - last, 0))
    weights = inputs.parts[0].size_bytes
    num_best = int(inputs.keep.best is not None)
    size_bytes = (last + 1 + num_whole + num_best) * inputs.size_bytes + (num_all - num_whole) * weights
    price = None if inputs.storage_price is None else size_bytes / 1e9 * inputs.storage_price
    return Space(last, 1, num_whole, num_best, num_all - num_whole, size_bytes, price)
