"""What an interrupted run did, beside the run of the same tool that was not interrupted."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

from exact.job import Job, lines
from exact.tools import is_ours

Line = dict[str, Any]


@dataclasses.dataclass
class Observation:
    """What was seen of one tool in one case; counts are over all ranks.

    Attributes:
        begins_at: of each start after the first, the batches that it took as done.
        lost: batches trained on before a kill, and again after it.
        after: batches that the uninterrupted run trained on from the first resume to its end.
        same: of those, in how many the interrupted run had the same, by what.
        next_epoch: batches in epochs behind those that were cut, and those with the same samples in the same order.
        repeated: uses of a sample beyond the first, in the epochs that were cut.
        missed: samples never used in them.
        parameters: whether the final ones are bit for bit those of the uninterrupted run.
        failed: the error of a start that did not do what it must.
    """

    begins_at: list[int] = dataclasses.field(default_factory=list)
    lost: int = 0
    after: int = 0
    same: dict[str, int] = dataclasses.field(default_factory=dict)
    next_epoch: tuple[int, int] = (0, 0)
    repeated: int = 0
    missed: int = 0
    parameters: bool = False
    failed: str = ""

    def is_same(self, name: str) -> bool:
        """Whether all that followed the resume was as it had to be, by ``name``."""
        return not self.failed and self.same[name] == self.after

    @property
    def is_exact(self) -> bool:
        return not self.failed and self.parameters and all(count == self.after for count in self.same.values())


FIELDS = ("ids", "inputs", "dropout", "rate", "loss")


def begins_at(job: Job) -> int:
    """How many batches a start took as done: what its checkpoint says with ours, what the tool says otherwise."""
    if not is_ours(job):
        return int(lines(job)[0]["begins_at"])
    newest = max(job.checkpoints.glob("attempt-*/attempt.json"), key=lambda path: path.parent.name)
    origin = json.loads(newest.read_text())["restored_from"]
    if origin is None:
        return 0
    manifest = job.checkpoints / origin["attempt"] / origin["name"] / "manifest.json"
    return int(json.loads(manifest.read_text())["header"]["progress"]["batch"])


@dataclasses.dataclass(frozen=True)
class Trained:
    """One start: where it began, and what each rank trained on, the place of each batch in the run made good."""

    begins_at: int
    ranks: list[list[Line]]
    parameters: list[str]


def trained(jobs: Sequence[Job]) -> Trained:
    start = begins_at(jobs[0])
    found = [lines(job) for job in jobs]
    ranks = [[line for line in rank if "ids" in line] for rank in found]
    for rank in ranks:
        for number, line in enumerate(rank):
            line["done"] = start + number
    return Trained(start, ranks, [line["parameters"] for rank in found for line in rank if "parameters" in line])


def observe(reference: Trained, starts: Sequence[Trained]) -> Observation:
    """Compare what went into the final parameters."""
    resumes = [start.begins_at for start in starts[1:]]
    found = Observation(begins_at=resumes, parameters=starts[-1].parameters == reference.parameters)
    ends = [*(min(resumes[number:]) for number in range(len(resumes))), None]
    found.same = dict.fromkeys(FIELDS, 0)
    for rank, expected in enumerate(reference.ranks):
        counted = [
            line for start, end in zip(starts, ends, strict=True) for line in start.ranks[rank] if _counts(line, end)
        ]
        found.lost += sum(len(start.ranks[rank]) for start in starts) - len(counted)
        _count_same(found, expected, counted)
    _count_samples(found, reference, starts, ends)
    return found


def _counts(line: Line, end: int | None) -> bool:
    return end is None or line["done"] < end


def _count_same(found: Observation, expected: Sequence[Line], counted: Sequence[Line]) -> None:
    first, by_place = min(found.begins_at), {line["done"]: line for line in counted}
    length = max(len(expected), *(place + 1 for place in by_place))
    wanted = [*expected, *({} for _ in range(length - len(expected)))]
    pairs = [(wanted[place], by_place.get(place, {})) for place in range(first, length)]
    found.after += len(pairs)
    for name in FIELDS:
        found.same[name] += sum(left.get(name) == right.get(name) for left, right in pairs)
    cut = max(found.begins_at)
    epoch = expected[cut]["epoch"] if cut < len(expected) else expected[-1]["epoch"]
    behind = [pair for pair in pairs if pair[0].get("epoch", epoch) > epoch]
    same = sum(left.get("ids") == right.get("ids") for left, right in behind)
    found.next_epoch = (found.next_epoch[0] + len(behind), found.next_epoch[1] + same)


def _count_samples(
    found: Observation, reference: Trained, starts: Sequence[Trained], ends: Sequence[int | None]
) -> None:
    """By the epochs of the uninterrupted run: what it used and the other did not, and what the other used again."""
    length = len(reference.ranks[0])
    epochs = {reference.ranks[0][place]["epoch"] for place in found.begins_at if place < length}
    places = [line["epoch"] for line in reference.ranks[0]]
    uses: Counter[tuple[int, int]] = Counter()
    for start, end in zip(starts, ends, strict=True):
        for line in itertools.chain(*start.ranks):
            if _counts(line, end) and line["done"] < length:
                uses.update((places[line["done"]], sample) for sample in line["ids"])
    wanted: Counter[tuple[int, int]] = Counter()
    for line in itertools.chain(*reference.ranks):
        wanted.update((line["epoch"], sample) for sample in line["ids"])
    found.repeated = sum((uses - wanted)[key] for key in uses - wanted if key[0] in epochs)
    found.missed = sum((wanted - uses)[key] for key in wanted - uses if key[0] in epochs)
