"""The check of the first steps after a resume, on one rank; and how those of all ranks are put together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from resume_core.evidence.compare import Row, compare
from resume_core.evidence.record import Record
from resume_core.state import Progress

__all__ = ["Checker", "merge_results"]

_MAX_PLACES = 20
_MAX_ROWS = 200  # of one rank in the report


class Checker:
    """Compares batches with what was recorded of them.

    Args:
        start: where the run goes on.
        recorded: behind that, by the interrupted run, of as many batches on each rank; empty when it recorded nothing.
        predicted: what the save knew of the next batch, see `Evidence.header`.
        rtol: relative tolerance for what is computed; None for bit by bit.
        reason: why what is computed may be other than it was; empty when it should not be.
    """

    def __init__(
        self,
        start: Progress,
        recorded: Sequence[Record],
        predicted: Mapping[str, Any],
        *,
        rtol: float | None,
        reason: str,
    ) -> None:
        self._start, self._recorded, self._predicted = start, list(recorded), predicted
        self._rtol, self._reason = rtol, reason
        self._rows: list[Row] = []
        self._num_batches = self._num_steps = self._num_left_out = 0
        self._step = start.step
        self._changed: list[str] = []
        self._num_live = 0

    def live(self, num_places: int, differing: Sequence[str]) -> None:
        """How many places of the state that was read were compared with the live objects, and which of them differ."""
        self._num_live, self._changed = num_places, list(differing)

    def left_out(self, num_batches: int) -> None:
        """A script was given so many batches that it has not trained on."""
        self._num_left_out += num_batches

    def is_over(self, progress: Progress) -> bool:
        """Whether nothing more is to be compared at a boundary; alike on all ranks, whatever each has met with."""
        num_batches = progress.batch - self._start.batch
        if not self._recorded:
            return num_batches > 1 or (num_batches == 1 and progress.step > self._start.step)
        return num_batches >= len(self._recorded)

    def wants_sizes(self, batch: int) -> bool:
        """Whether norms were recorded at that batch."""
        return any(one.batch == batch and one.sizes is not None for one in self._recorded)

    def add(self, record: Record, names: Sequence[str]) -> None:
        """A batch was trained on.

        Args:
            record: of it.
            names: of the parameters.
        """
        saved = next((one for one in self._recorded if one.batch == record.batch), None)
        if saved is not None:
            self._rows += compare(saved, record, self._rtol, names)
        elif not self._recorded and not self._num_batches:
            self._rows += self._compare_with_predicted(record)
        self._num_batches += 1
        self._num_steps += record.step > self._step and (saved is not None or not self._recorded)
        self._step = record.step

    def _compare_with_predicted(self, record: Record) -> list[Row]:
        rows, num_left_out = [], self._num_left_out + max(len(record.inputs) - len(record.samples), 0)
        for now in record.samples:
            expected, at = self._next_place(now), (now["num_batches"], now["position"])
            if expected is None or expected == at:
                continue
            # how many samples there were in batches that were left out is not known
            if 0 < at[0] - expected[0] <= num_left_out and at[1] > expected[1]:
                continue
            name = f"position of loader {now['loader']}"
            rows.append(Row(record.batch, record.step, name, str(expected), str(at)))
        return rows

    def _next_place(self, now: Mapping[str, Any]) -> tuple[int, int] | None:
        """Where a loader stands behind the first batch, if it goes on as the save says."""
        before = next((one for one in self._predicted.get("samples", ()) if one["loader"] == now["loader"]), None)
        if before is None or before["pass"] != now["pass"] or before["position"] is None or now["ids"] is None:
            return None
        return before["num_batches"] + 1, before["position"] + now["num_samples"]

    def result(self) -> dict[str, Any]:
        """What came of it on this rank, as strict JSON."""
        return {
            "steps": self._num_steps if self._recorded else 0,
            "batches": self._num_batches,
            "is_recorded": bool(self._recorded),
            "reason": self._reason,
            "rtol": self._rtol,
            "rows": [row.as_dict() for row in self._rows[:_MAX_ROWS]],
            "num_rows": len(self._rows),
            "live": {"num": self._num_live, "differs": self._changed[:_MAX_PLACES], "num_differ": len(self._changed)},
        }


def merge_results(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One result of those of all ranks.

    Its ``verdict`` is ``"same"``, ``"differs"``, ``"not checked"`` (nothing was recorded, and what the save predicted
    has come), or ``"changed"``: it differs, and changes were accepted that may be why.
    """
    first = dict(results[0])
    first["rows"] = [{**row, "rank": rank} for rank, result in enumerate(results) for row in result["rows"]]
    first["num_rows"] = sum(result["num_rows"] for result in results)
    first["is_recorded"] = all(result["is_recorded"] for result in results)
    first["steps"] = min(result["steps"] for result in results)  # fewer where evidence was given up
    several = len(results) > 1
    places = [
        f"{place}, rank {rank}" if several else place
        for rank, result in enumerate(results)
        for place in result["live"]["differs"]
    ]
    lives = [result["live"] for result in results]
    total = {name: sum(live[name] for live in lives) for name in ("num", "num_differ")}
    first["live"] = {**total, "differs": places[:_MAX_PLACES]}
    differs = bool(first["num_rows"] or total["num_differ"])
    checked = first["is_recorded"] and first["steps"] > 0
    differing = "changed" if first["reason"] else "differs"
    first["verdict"] = differing if differs else "same" if checked else "not checked"
    return first
