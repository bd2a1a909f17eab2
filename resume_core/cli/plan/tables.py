"""The tables of a plan as rows of text, for the terminal and for the page alike."""

from __future__ import annotations

from collections.abc import Callable

from resume_core.cli.plan.advice import Plan
from resume_core.cli.plan.costs import named_points
from resume_core.cli.plan.units import show_bytes, show_money, show_seconds, show_share

__all__ = ["a_day", "cost_table", "input_table", "size_table", "space_table"]

Table = list[tuple[str, ...]]
"""Rows of cells, the first row is the heading."""


def size_table(plan: Plan) -> Table:
    """Sizes of a checkpoint by part, and how long a save takes."""
    inputs = plan.inputs
    rows: Table = [("a checkpoint", "size", "bytes a parameter", "what")]
    for part in inputs.parts:
        each = "" if part.per_parameter_bytes is None else f"{part.per_parameter_bytes:.3g}"
        rows.append((part.name, show_bytes(part.size_bytes), each, part.what))
    known = [part.per_parameter_bytes for part in inputs.parts if part.per_parameter_bytes is not None]
    total = f"{sum(known):.3g}" if len(known) == len(inputs.parts) else ""
    if not total:
        rows = [(name, size, what) for name, size, _, what in rows]
    last = ("in all", show_bytes(inputs.size_bytes))
    return [*rows, (*last, total, "") if total else (*last, "")]


def cost_table(plan: Plan) -> Table:
    """What the interval to take costs, beside the optimum and what the run does."""
    points = named_points(plan.costs)
    inputs, found = plan.inputs, [point for _, point in points]
    rows: Table = [
        ("", *(name for name, _ in points)),
        ("save every", *(show_seconds(p.interval_s) for p in found)),
        ("lost of the time", *(show_share(p.lost) for p in found)),
        ("  saving", *(show_share(p.saving) for p in found)),
        ("  training again", *(show_share(p.again) for p in found)),
        ("  restarting", *(show_share(p.restarting) for p in found)),
        ("lost a day", *(show_seconds(p.lost * 86400) for p in found)),
    ]
    if inputs.gpus > 1:
        rows.append(("  in GPU time", *(show_seconds(p.lost * 86400 * inputs.gpus) for p in found)))
    if inputs.price is not None:
        price = inputs.price * inputs.gpus * 24
        rows.append(("  in money", *(show_money(p.lost * price) for p in found)))
    rows.append(("an interruption costs", *(show_seconds(p.loss_s) for p in found)))
    rows.append(("  at most", *(show_seconds(p.worst_loss_s) for p in found)))
    return rows


def a_day(plan: Plan) -> tuple[float, str, Callable[[float], str]]:
    """What losing all of a day costs, in which unit, and how that is shown: money, else hours of all GPUs."""
    inputs = plan.inputs
    if inputs.price is not None:
        return 24 * inputs.gpus * inputs.price, "money", show_money
    return 24.0 * inputs.gpus, "GPU-hours" if inputs.gpus > 1 else "hours", lambda hours: show_seconds(hours * 3600)


def input_table(plan: Plan) -> Table:
    """What the plan was made from, where it is from, and how to give it."""
    rows: Table = [("made from", "", "", "option")]
    for row in plan.inputs.rows:
        source = f"{row.source}: {row.why}" if row.why else row.source
        rows.append((row.name, row.text, source, row.option))
    return rows


def space_table(plan: Plan) -> Table:
    """What the directory needs."""
    space, inputs = plan.space, plan.inputs
    size, weights = inputs.size_bytes, inputs.parts[0].size_bytes
    rows: Table = [
        ("room in the directory", "", ""),
        ("newest", f"{space.num_newest}", show_bytes(space.num_newest * size)),
        ("being written", f"{space.num_writing}", show_bytes(size)),
    ]
    if space.num_milestones:
        rows.append(("milestones", f"{space.num_milestones}", show_bytes(space.num_milestones * size)))
    if space.num_best:
        rows.append(("the best", f"{space.num_best}", show_bytes(size)))
    if space.num_thinned:
        rows.append(("weights of older ones", f"{space.num_thinned}", show_bytes(space.num_thinned * weights)))
    rows.append(("in all", "", show_bytes(space.size_bytes)))
    if space.price_per_month is not None:
        rows.append(("  in money, a month", "", show_money(space.price_per_month)))
    return rows
