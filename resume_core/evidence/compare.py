"""A batch that was trained on after a resume, beside the one that the interrupted run recorded."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from resume_core.columns import aligned, pair
from resume_core.evidence.prints import numbers_of
from resume_core.evidence.record import Record, as_json

__all__ = ["ADVICE", "Row", "compare", "table"]

ADVICE = (
    "Code that runs once at a start may have changed what was restored, or something that training draws on is in no "
    "checkpoint."
)
"""Behind a table of what differs."""

_MAX_ROWS = 20
_FLOOR = 1e-6  # what is smaller counts as zero where values are compared by tolerance: rounding of a loss near zero
_INPUTS = "inputs"


@dataclass(frozen=True)
class Row:
    """One thing that is not as it was recorded.

    Attributes:
        batch: of the run.
        step: of the run.
        name: what it is.
        saved: as recorded, as text.
        current: as it is now, as text.
        rank: where.
    """

    batch: int
    step: int
    name: str
    saved: str
    current: str
    rank: int = 0

    def as_dict(self) -> dict[str, Any]:
        """Strict JSON."""
        return asdict(self)


def compare(saved: Record, now: Record, rtol: float | None, names: Sequence[str] = ()) -> Iterator[Row]:
    """What differs.

    Args:
        saved: as the interrupted run recorded it.
        now: as it is.
        rtol: relative tolerance for what is computed; None for bit by bit.
        names: of the parameters, in their order.
    """

    def row(name: str, before: Any, after: Any) -> Row:
        return Row(now.batch, now.step, name, _text(before), _text(after))

    for name in ("step", "batch", "epoch"):
        if getattr(saved, name) != getattr(now, name):
            yield row(name, getattr(saved, name), getattr(now, name))
    yield from (row(*found) for found in _samples(saved.samples, now.samples))
    if saved.lrs != now.lrs:
        yield row("learning rate", saved.lrs, now.lrs)
    if saved.rng != now.rng and rtol is None:
        yield row("random generators", saved.rng[:8], now.rng[:8])
    if not _same_inputs(saved.inputs, now.inputs, rtol):
        yield row(_INPUTS, *map(_input_texts, (saved.inputs, now.inputs)))
    for name in ("losses", "grad_norms"):
        before, after = getattr(saved, name), getattr(now, name)
        if not _same_numbers(before, after, rtol):
            yield row("loss" if name == "losses" else "gradient norm", before, after)
    if saved.scale != now.scale:
        yield row("loss scale", saved.scale, now.scale)
    yield from (row(*found) for found in _weights(saved, now, rtol, names))


def _samples(saved: Sequence[Any], now: Sequence[Any]) -> Iterator[tuple[str, Any, Any]]:
    if not saved or not now:
        return  # not known in one of them
    if len(saved) != len(now):
        yield "loaders", len(saved), len(now)
        return
    for place, (before, after) in enumerate(zip(saved, now, strict=True)):
        suffix = f" of loader {before.get('loader', place)}"
        for key, name in (("loader", "loader"), ("num_batches", "batch"), ("position", "position"), ("ids", "samples")):
            if before.get(key) != after.get(key) and None not in (before.get(key), after.get(key)):
                yield name + suffix, before.get(key), after.get(key)


def _same_inputs(saved: Sequence[Sequence[Any]], now: Sequence[Sequence[Any]], rtol: float | None) -> bool:
    if rtol is None or len(saved) != len(now):
        return [digest for digest, _ in saved] == [digest for digest, _ in now]
    return _same_numbers([norm for _, norm in saved], [norm for _, norm in now], rtol)


def _input_texts(inputs: Iterable[Sequence[Any]]) -> list[str]:
    return [f"{digest[:8]} (norm {norm:.6g})" for digest, norm in inputs]


def _same_numbers(saved: Sequence[float], now: Sequence[float], rtol: float | None) -> bool:
    return len(saved) == len(now) and all(_is_same(a, b, rtol) for a, b in zip(saved, now, strict=True))


def _is_same(saved: float, now: float, rtol: float | None) -> bool:
    if saved == now or (math.isnan(saved) and math.isnan(now)):
        return True
    return rtol is not None and abs(saved - now) <= max(rtol * max(abs(saved), abs(now)), _FLOOR)


def _weights(saved: Record, now: Record, rtol: float | None, names: Sequence[str]) -> Iterator[tuple[str, Any, Any]]:
    if saved.sizes is not None and now.sizes is not None:
        norms, after = numbers_of(saved.sizes.get("norms", "")), numbers_of(now.sizes.get("norms", ""))
        if norms.shape != after.shape:
            yield "number of weights", int(norms.size), int(after.size)
            return
        places = np.flatnonzero(~_close(norms, after, rtol)).tolist()
        if places:
            first = names[places[0]] if places[0] < len(names) else str(places[0])
            more = f" and {len(places) - 1} more" * (len(places) > 1)
            yield f"weights: norm of {first}{more}", float(norms[places[0]]), float(after[places[0]])
            return
        values = [numbers_of(record.get("values", "")) for record in (saved.sizes, now.sizes)]
        if rtol is not None and (values[0].shape != values[1].shape or not _close(values[0], values[1], rtol).all()):
            before, then = (f"norm {float(np.linalg.norm(found)):.6g}" for found in values)
            yield "weights: a sample", before, then
    if saved.weights != now.weights and rtol is None:
        yield "weights: a sample", (saved.weights or "none")[:8], (now.weights or "none")[:8]


def _close(before: Any, after: Any, rtol: float | None) -> Any:
    same = (before == after) | (np.isnan(before) & np.isnan(after))
    if rtol is None:
        return same
    # single elements may be near zero: they are measured by the largest of them
    reach = max(_FLOOR, rtol * float(np.nanmax(np.abs(before), initial=0.0)))
    return same | np.isclose(before, after, rtol=rtol, atol=reach)


def _text(value: Any) -> str:
    if isinstance(value, float):
        return str(as_json(value))
    if isinstance(value, list):
        return ", ".join(_text(item) for item in value) or "none"
    return str(value)


def table(rows: Sequence[Row], *, several: bool = False) -> str:
    """The rows as aligned columns; the first 20, and how many more there are.

    Args:
        rows: at least one.
        several: whether more than one rank trains.
    """
    cells = [("step", "batch", "", "recorded", "now")]
    for one in rows[:_MAX_ROWS]:
        name = f"{one.name}, rank {one.rank}" if several else one.name
        cells.append((str(one.step), str(one.batch), name, *pair(one.saved, one.current)))
    more = len(rows) - _MAX_ROWS
    return aligned(cells) + (f"\n… and {more} more" if more > 0 else "")
