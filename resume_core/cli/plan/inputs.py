"""What a plan is made from: what was given, else what the run tells, else what is assumed, and which of them it was."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

from resume_core.cadence import CAP
from resume_core.cli.plan.known import Run
from resume_core.cli.plan.sizes import OptimizerName, Part, PrecisionName, bytes_per_parameter, expected_parts
from resume_core.cli.plan.units import show_bandwidth, show_count, show_money, show_seconds, show_share
from resume_core.policy import Keep

__all__ = ["Given", "Inputs", "Row", "Source", "check", "resolve"]

Source = Literal["given", "run", "assumed", "computed"]

_GIVEN: Source = "given"
_RUN: Source = "run"
_COPY_BYTES_PER_S = 20e9
_WRITE_BYTES_PER_S = 1e9
_MTBF_S = 24 * 3600.0
_RESTART_S = 5 * 60.0
_GPUS_PER_MACHINE = 8
_DAYS = 7.0


@dataclass(frozen=True)
class Row:
    """A number that a plan is made from.

    Attributes:
        key: its name in JSON, with the unit.
        name: for people.
        value: in that unit.
        text: the same for people.
        source: where it is from.
        why: more about that; may be empty.
        option: that gives it.
    """

    key: str
    name: str
    value: Any
    text: str
    source: Source
    why: str
    option: str


@dataclass(frozen=True)
class Given:
    """What the user gave; None for what was not. Units are those of the command's help, in seconds and bytes."""

    parameters: int | None = None
    trained: int | None = None
    optimizer: OptimizerName | None = None
    precision: PrecisionName | None = None
    copy_bytes_per_s: float | None = None
    write_bytes_per_s: float | None = None
    mtbf_s: float | None = None
    machine_mtbf_s: float | None = None
    machines: int | None = None
    gpus: int | None = None
    restart_s: float | None = None
    max_overhead: float | None = None
    price: float | None = None
    keep_last: int | None = None
    milestones_per_day: float | None = None
    thin_after: int | None = None
    run_s: float | None = None
    storage_price: float | None = None


@dataclass(frozen=True)
class Inputs:
    """What the plan is computed from.

    Attributes:
        title: what is planned, for people.
        rows: every number with its source, in the order in which people read them.
        parts: of a checkpoint.
        first_rank_bytes: what rank 0 copies and writes: with replicated state nearly all of it.
        blocking_s: that a save stops training.
        durable_s: from the begin of a save until it is in the directory.
        drain_s: from the begin of a save until the next one can follow.
        mtbf_s: mean time between interruptions of the job.
        restart_s: from an interruption until training goes on.
        max_overhead: share of the time that saving may take.
        gpus: that wait when one waits.
        price: of a GPU and hour; None when it was not given.
        keep: what stays; ``every_steps`` of milestones by the day is None where the run's speed is not known, and
            ``thin_after`` is apart, as `Keep` refuses it then.
        thin_after: see `Keep`.
        milestones_per_day: checkpoints that stay.
        run_s: seconds that the run takes in all; milestones gather that long.
        storage_price: of a GB and month; None when it was not given.
        run: what was read, None without a URL.
    """

    title: str
    rows: list[Row]
    parts: list[Part]
    first_rank_bytes: int
    blocking_s: float
    durable_s: float
    drain_s: float
    mtbf_s: float
    restart_s: float
    max_overhead: float
    gpus: int
    price: float | None
    keep: Keep
    thin_after: int | None
    milestones_per_day: float
    run_s: float
    storage_price: float | None
    run: Run | None

    @property
    def size_bytes(self) -> int:
        """Of a checkpoint."""
        return sum(part.size_bytes for part in self.parts)


class _Chosen:
    """Takes the first of several choices that is known, and notes it down."""

    def __init__(self) -> None:
        self.rows: list[Row] = []

    def take(
        self, key: str, names: tuple[str, str], show: Callable[[Any], str], *choices: tuple[Source, Any, str]
    ) -> Any:
        source, value, why = next(choice for choice in choices if choice[1] is not None)
        plain = value.value if isinstance(value, (OptimizerName, PrecisionName)) else value
        self.rows.append(Row(key, names[0], plain, show(plain), source, why, names[1]))
        return value


def resolve(given: Given, run: Run | None) -> Inputs:
    """Put together what is known.

    Args:
        given: by the user; it wins.
        run: what a run's directory tells.

    Raises:
        ValueError: nothing tells how large a checkpoint is, or options contradict one another.
    """
    check(given, has_run=run is not None)
    chosen = _Chosen()
    title, parts, first_rank_bytes = _sizes(given, run, chosen)
    gpus: int = chosen.take(
        "num_gpus",
        ("GPUs", "--gpus"),
        str,
        ("given", given.gpus, ""),
        ("run", run and run.num_ranks, "one for each rank"),
        ("assumed", 1, ""),
    )
    blocking_s, durable_s, drain_s = _seconds(given, run, first_rank_bytes, gpus, chosen)
    mtbf_s = _mtbf(given, run, gpus, chosen)
    restart_s, max_overhead = _limits(given, run, chosen)
    keep, thin_after, milestones_per_day, run_s = _keeping(given, run, chosen)
    _prices(given, chosen)
    return Inputs(
        title=title,
        rows=chosen.rows,
        parts=parts,
        first_rank_bytes=first_rank_bytes,
        blocking_s=blocking_s,
        durable_s=durable_s,
        drain_s=drain_s,
        mtbf_s=mtbf_s,
        restart_s=restart_s,
        max_overhead=max_overhead,
        gpus=gpus,
        price=given.price,
        keep=keep,
        thin_after=thin_after,
        milestones_per_day=milestones_per_day,
        run_s=run_s,
        storage_price=given.storage_price,
        run=run,
    )


def _prices(given: Given, chosen: _Chosen) -> None:
    for key, names, price in (
        ("price_per_gpu_hour", ("price of a GPU-hour", "--price"), given.price),
        ("storage_price_per_gb_month", ("price of a GB-month", "--storage-price"), given.storage_price),
    ):
        if price is not None:
            chosen.take(key, names, show_money if price >= 0.1 else str, ("given", price, ""))


def check(given: Given, *, has_run: bool) -> None:
    """Refuse what makes no sense, before anything is read.

    Raises:
        ValueError: nothing tells how large a checkpoint is, or options contradict one another.
    """
    if given.parameters is None and not has_run:
        raise ValueError(
            "nothing tells how large a checkpoint is: give the number of parameters, as in "
            "`exact-resume plan --parameters 7B`, or the directory of a run, as in `exact-resume plan runs/first`"
        )
    if given.parameters is None and (given.optimizer or given.precision or given.trained):
        raise ValueError(
            "--optimizer, --precision and --trained go with --parameters; without it the sizes are those of the run"
        )
    if given.trained is not None and given.parameters is not None and given.trained > given.parameters:
        raise ValueError(f"--trained {given.trained} is more than --parameters {given.parameters}")
    if given.mtbf_s is not None and (given.machine_mtbf_s or given.machines):
        raise ValueError("--mtbf is of the whole job: leave out --machine-mtbf and --machines, or --mtbf")
    if given.thin_after is not None and not given.milestones_per_day:
        raise ValueError("--thin-after has nothing to thin: give --milestones-per-day as well")


def _sizes(given: Given, run: Run | None, chosen: _Chosen) -> tuple[str, list[Part], int]:
    if given.parameters is None:
        assert run is not None  # see check
        return f"{run.url}, {run.checkpoint} (step {run.step})", run.parts, run.first_rank_bytes
    count: int = chosen.take(
        "num_parameters", ("parameters", "--parameters"), show_count, ("given", given.parameters, "")
    )
    if given.trained is not None:
        chosen.take(
            "num_trained_parameters", ("of these trained", "--trained"), show_count, ("given", given.trained, "")
        )
    optimizer: OptimizerName = chosen.take(
        "optimizer",
        ("optimizer", "--optimizer"),
        str,
        ("given", given.optimizer, ""),
        ("assumed", OptimizerName.adamw, ""),
    )
    precision: PrecisionName = chosen.take(
        "precision",
        ("precision", "--precision"),
        str,
        ("given", given.precision, ""),
        ("assumed", PrecisionName.fp32, "or autocast"),
    )
    parts = expected_parts(count, optimizer, precision, given.trained)
    each = bytes_per_parameter(optimizer, precision)
    title = f"{show_count(count)} parameters, {optimizer.value}, {precision.value}: {each:.3g} bytes a parameter"
    return title, parts, sum(part.size_bytes for part in parts)


def _seconds(
    given: Given, run: Run | None, first_rank_bytes: int, gpus: int, chosen: _Chosen
) -> tuple[float, float, float]:
    """How long a save takes: as measured, where the run's own checkpoints are planned; else size over bandwidth."""
    is_own = run is not None and given.parameters is None
    blocking_s = run.blocking_s if run and is_own and given.copy_bytes_per_s is None else None
    durable_s = run.durable_s if run and is_own and given.write_bytes_per_s is None else None
    if blocking_s is None:
        copy: float = chosen.take(
            "copy_bytes_per_s",
            ("GPU to memory", "--copy-bandwidth"),
            show_bandwidth,
            ("given", given.copy_bytes_per_s, ""),
            ("run", run and run.copy_bytes_per_s, "measured"),
            ("assumed", _COPY_BYTES_PER_S, "PCIe 4.0 x16"),
        )
        blocking_s = first_rank_bytes / copy
    else:
        names, why = ("a save stops training", "--copy-bandwidth"), f"median of {run.num_saves}" if run else ""
        chosen.take("blocking_s", names, show_seconds, ("run", blocking_s, why))
    if durable_s is None:
        write: float = chosen.take(
            "write_bytes_per_s",
            ("memory to the store", "--bandwidth"),
            show_bandwidth,
            ("given", given.write_bytes_per_s, ""),
            ("run", run and run.write_bytes_per_s, "measured"),
            ("assumed", _WRITE_BYTES_PER_S, "network disk"),
        )
        # one rank writes what it has staged while it stages the rest; several begin when all have staged
        writing_s = first_rank_bytes / write
        durable_s = max(blocking_s, writing_s) if gpus == 1 else blocking_s + writing_s
        return blocking_s, durable_s, durable_s
    durable_s, drain_s = max(durable_s, blocking_s), run.drain_s if run and run.drain_s else durable_s
    names, why = ("in the directory after", "--bandwidth"), f"median of {run.num_saves}" if run else ""
    chosen.take("durable_s", names, show_seconds, ("run", durable_s, why))
    return blocking_s, durable_s, drain_s


def _mtbf(given: Given, run: Run | None, gpus: int, chosen: _Chosen) -> float:
    """Of the job: what was given or read; else that of a machine, divided by their number, as each stops the job."""
    key, names = "mtbf_s", ("interrupted every", "--mtbf")
    by_machine = given.machine_mtbf_s is not None or given.machines is not None
    read = run.mtbf_s if run and not by_machine else None
    if given.mtbf_s is not None or read is not None:
        why = f"{run.num_interruptions} interruptions" if run else ""
        return float(chosen.take(key, names, show_seconds, ("given", given.mtbf_s, ""), ("run", read, why)))
    assumed_machines = math.ceil(gpus / _GPUS_PER_MACHINE)
    if not by_machine and assumed_machines == 1:
        return float(chosen.take(key, names, show_seconds, ("assumed", _MTBF_S, "")))
    machines: int = chosen.take(
        "num_machines",
        ("machines", "--machines"),
        str,
        ("given", given.machines, ""),
        ("assumed", assumed_machines, f"{_GPUS_PER_MACHINE} GPUs each"),
    )
    of_one: float = chosen.take(
        "machine_mtbf_s",
        ("a machine lost every", "--machine-mtbf"),
        show_seconds,
        ("given", given.machine_mtbf_s, ""),
        ("assumed", _MTBF_S, ""),
    )
    return float(chosen.take(key, names, show_seconds, ("computed", of_one / machines, "any stops all")))


def _limits(given: Given, run: Run | None, chosen: _Chosen) -> tuple[float, float]:
    restart_s: float = chosen.take(
        "restart_s",
        ("until it trains again", "--restart"),
        show_seconds,
        ("given", given.restart_s, ""),
        ("run", run and run.restart_s, "median"),
        ("assumed", _RESTART_S, "with a new machine"),
    )
    max_overhead: float = chosen.take(
        "max_overhead",
        ("saving may take", "--max-overhead"),
        show_share,
        ("given", given.max_overhead, ""),
        ("assumed", CAP, "as SaveEvery()"),
    )
    return restart_s, max_overhead


def _keeping(given: Given, run: Run | None, chosen: _Chosen) -> tuple[Keep, int | None, float, float]:
    """What stays, ``thin_after``, milestones a day, and for how long they gather: what was not given is as recorded."""
    recorded = run.keep if run else None
    last: int = chosen.take(
        "keep_last",
        ("newest that stay", "--keep-last"),
        str,
        ("given", given.keep_last, ""),
        ("run", recorded and recorded.last, "its Keep"),
        ("assumed", Keep().last, "as Keep()"),
    )
    keep, milestones = _milestones(replace(recorded or Keep(), last=last, thin_after=None), given, run, chosen)
    thin_after = recorded.thin_after if recorded and given.thin_after is None else given.thin_after
    if given.thin_after is not None:
        chosen.take("thin_after", ("only weights after", "--thin-after"), str, ("given", thin_after, "newer ones"))
    if not milestones:
        return keep, thin_after, 0.0, _DAYS * 86400
    run_s: float = chosen.take(
        "run_s",
        ("the run takes", "--run-time"),
        show_seconds,
        ("given", given.run_s, ""),
        ("assumed", _DAYS * 86400, ""),
    )
    return keep, thin_after, milestones, run_s


def _milestones(keep: Keep, given: Given, run: Run | None, chosen: _Chosen) -> tuple[Keep, float]:
    """Those of a policy by the day, or the policy with those that were given."""
    a_day = run.steps_per_s * 86400 if run and run.steps_per_s else None
    names, why = ("milestones a day", "--milestones-per-day"), ""
    milestones, source = given.milestones_per_day, _GIVEN
    if milestones:
        keep = replace(keep, every_steps=max(round(a_day / milestones), 1) if a_day else None, every_epochs=None)
    elif keep.every_steps and a_day:
        milestones, source, why = a_day / keep.every_steps, _RUN, f"every_steps={keep.every_steps}"
    if not milestones:
        return keep, 0.0
    chosen.take("milestones_per_day", names, lambda value: f"{value:.4g}", (source, milestones, why))
    return keep, milestones
