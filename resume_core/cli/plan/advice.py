"""What a plan says in sentences: what to write in the script, why, and what to look out for."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from resume_core.cadence import CAP
from resume_core.cli.plan.costs import Costs, Space, costs_of, space_of
from resume_core.cli.plan.inputs import Inputs
from resume_core.cli.plan.units import show_bytes, show_money, show_seconds, show_share
from resume_core.policy import Keep

__all__ = ["Plan", "make_plan"]

_DAY_H = 24.0
_FAR_MORE = 20


@dataclass(frozen=True)
class Plan:
    """All that is shown.

    Attributes:
        inputs: what it was made from.
        costs: of saving.
        space: that the directory needs.
        save: what to write for ``save=``.
        save_by_mtbf: the same, for an interval that follows what saves really cost.
        keep: what to write for ``keep=``.
        verdict: the plan in a sentence or two.
        save_takes: how long a save takes, a sentence.
        notes: what to look out for, a sentence each.
    """

    inputs: Inputs
    costs: Costs
    space: Space
    save: str
    save_by_mtbf: str
    keep: str
    verdict: str
    save_takes: str
    notes: list[str]


def make_plan(inputs: Inputs) -> Plan:
    """Compute a plan and put it into words."""
    costs, space = costs_of(inputs), space_of(inputs)
    size, blocking, durable = (
        show_bytes(inputs.size_bytes),
        show_seconds(inputs.blocking_s),
        show_seconds(inputs.durable_s),
    )
    overhead = "" if inputs.max_overhead == CAP else f", max_overhead={_plain(inputs.max_overhead)}"
    return Plan(
        inputs,
        costs,
        space,
        save=f"SaveEvery(minutes={_plain(costs.interval.seconds / 60)})",
        save_by_mtbf=f"SaveEvery(mtbf_hours={_plain(inputs.mtbf_s / 3600, digits=3)}{overhead})",
        keep=_keep(inputs),
        verdict=_verdict(inputs, costs),
        save_takes=f"A save of {size} stops training for {blocking}, and is in the directory after {durable}.",
        notes=_notes(inputs, costs),
    )


def _plain(value: float, digits: int = 2) -> str:
    """Two or three significant digits, without an exponent."""
    return f"{float(f'{value:.{digits}g}'):f}".rstrip("0").rstrip(".")


def _keep(inputs: Inputs) -> str:
    """``last``, and of the others what is not as `Keep` has it anyway."""
    given = asdict(inputs.keep) | {"thin_after": inputs.thin_after}
    if inputs.milestones_per_day and inputs.keep.every_steps is None:
        given["every_steps"] = ...
    shown = {name: value for name, value in given.items() if name == "last" or value != getattr(Keep(), name)}
    return f"Keep({', '.join(f'{name}={_literal(value)}' for name, value in shown.items())})"


def _literal(value: Any) -> str:
    """As it stands in a script."""
    return "..." if value is ... else f'"{value}"' if isinstance(value, str) and '"' not in value else repr(value)


def _verdict(inputs: Inputs, costs: Costs) -> str:
    best = costs.best
    if best.lost > 0.999:
        return (
            f"No interval works: a save takes {show_seconds(inputs.durable_s)} until it is safe, a restart "
            f"{show_seconds(inputs.restart_s)}, and an interruption comes every {show_seconds(inputs.mtbf_s)}."
        )
    return (
        f"Save every {show_seconds(costs.interval.seconds)}. Of the time, {show_share(best.lost)} is lost: "
        f"{show_share(best.saving)} saving, {show_share(best.again)} training again what was lost, "
        f"{show_share(best.restarting)} restarting."
    )


def _notes(inputs: Inputs, costs: Costs) -> list[str]:
    notes = [note for note in (_bound(inputs, costs), _current(inputs, costs), _one_machine(inputs, costs)) if note]
    if inputs.milestones_per_day and not (inputs.run and inputs.run.steps_per_s):
        often = show_seconds(86400 / inputs.milestones_per_day)
        notes.append(f"every_steps=... is to be as many steps as {often} of training have.")
    if inputs.keep.every_epochs:
        notes.append(
            "Milestones by epochs (every_epochs=...) come on top of that room: it is not known how long one is."
        )
    if inputs.run and inputs.run.goodput is not None and inputs.run.num_interruptions:
        times = (
            "1 interruption" if inputs.run.num_interruptions == 1 else f"{inputs.run.num_interruptions} interruptions"
        )
        notes.append(
            f"So far the run has kept {show_share(inputs.run.goodput)} of the time since its start, with {times}."
        )
    if inputs.run and inputs.size_bytes > _FAR_MORE * inputs.run.size_bytes:
        notes.append("The run's checkpoints are far smaller than these: the rates that it measured may not hold.")
    return notes + (inputs.run.notes if inputs.run else [])


def _bound(inputs: Inputs, costs: Costs) -> str:
    interval, more = costs.interval, costs.best.lost - costs.optimum.lost
    optimum = f"The optimum is {show_seconds(interval.optimum_s)}, but"
    if interval.why == "cap":
        text = (
            f"{optimum} then saving would take {show_share(costs.optimum.saving)} of the time, and it may take "
            f"{show_share(inputs.max_overhead)} (--max-overhead)"
        )
        return f"{text}, which loses {show_share(more)} more in all." if more >= 5e-5 else f"{text}."
    if interval.why == "store":
        return (
            f"{optimum} a save takes {show_seconds(inputs.durable_s)} until it is in the directory, and one is written "
            "at a time: a fast local scratch=... in front of the directory takes them more often."
        )
    return ""


def _current(inputs: Inputs, costs: Costs) -> str:
    if costs.current is None:
        return ""
    more = costs.current.lost - costs.best.lost
    text = f"The run saves every {show_seconds(costs.current.interval_s)} now"
    if abs(more) < 5e-4:
        return f"{text}, which costs about the same."
    sign = "more" if more > 0 else "less"
    hours = abs(more) * _DAY_H
    price = f", {show_money(hours * inputs.gpus * inputs.price)}" if inputs.price else ""
    return f"{text}, which loses {show_share(abs(more))} of the time {sign}: a day {show_seconds(hours * 3600)}{price}."


def _one_machine(inputs: Inputs, costs: Costs) -> str:
    if inputs.gpus == 1:
        return ""
    return (
        "All ranks have the same state (DDP), so rank 0 alone copies and writes the "
        f"{show_bytes(inputs.first_rank_bytes)}: bandwidths are those of one GPU and one machine, and the other GPUs "
        "wait for the copy."
    )
