"""What `Keep` makes of the checkpoints of one line on one tier: decisions alone, nothing is read or deleted."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from resume_core.policy import Keep, as_policy
from resume_core.storage.attempt import Attempt
from resume_core.storage.manifest import CheckpointRef
from resume_core.storage.paths import parse_checkpoint_folder
from resume_core.storage.sealed import JsonMapping

__all__ = ["Entry", "Verdict", "best_of", "judge", "reasons", "recorded_keep"]

Verdict = Literal["keep", "thin", "delete"]


@dataclass(frozen=True)
class Entry:
    """A checkpoint of the line.

    Attributes:
        ref: where it lies; its serial is None when its manifest cannot be read.
        header: what its manifest says; empty when that cannot be read.
        is_whole: False when only its weights are left.
        pin: of each kind of pinned ones the newest stays and is not counted; None for all others.
        problem: why its header cannot be understood, empty when it can: such a one stays, and is not counted.
    """

    ref: CheckpointRef
    header: JsonMapping = field(default_factory=dict)
    is_whole: bool = True
    pin: Hashable = None
    problem: str = ""

    @property
    def is_sound(self) -> bool:
        """Whether training could go on from it, as far as its manifest tells."""
        return self.is_whole and self.ref.serial is not None and not self.problem

    @property
    def is_damaged(self) -> bool:
        """Whether nobody can go on from it, or read its weights, as far as its manifest tells."""
        return bool(self.problem) or (self.is_whole and self.ref.serial is None)

    @property
    def step(self) -> int | None:
        """Optimizer steps done, from its name, since a header is the caller's."""
        place = parse_checkpoint_folder(self.ref.name)
        return None if place is None else place[0]

    @property
    def num_epochs(self) -> int | None:
        """Epochs that were complete."""
        progress = self.header.get("progress")
        if not isinstance(progress, dict) or not isinstance(epoch := progress.get("epoch"), int):
            return None
        return epoch + bool(progress.get("ends_epoch"))

    def metric(self, name: str) -> float | None:
        """A metric as it stood when this was saved; None when there was none, or no finite number.

        An infinite one is what a counter begins with (``best=inf``), and has judged nothing.
        """
        metrics = self.header.get("metrics")
        try:
            value = float(metrics[name]) if isinstance(metrics, dict) else math.nan  # "inf" is text in strict JSON
        except (KeyError, OverflowError, TypeError, ValueError):
            return None
        return value if math.isfinite(value) else None


def judge(line: Sequence[Entry], keep: Keep) -> list[Verdict]:
    """What becomes of each checkpoint.

    Args:
        line: newest first.
        keep: the user's policy.
    """
    whole = _newest(line, keep.last)
    kept = {*_milestones(line, keep.every_steps, lambda entry: entry.step)}
    kept |= {*_milestones(line, keep.every_epochs, lambda entry: entry.num_epochs), *_best(line, keep)}
    whole |= {place for place, entry in enumerate(line) if entry.problem}
    verdicts: list[Verdict] = []
    num_newer = 0
    for place, entry in enumerate(line):
        is_old = keep.thin_after is not None and num_newer >= keep.thin_after
        verdicts.append("keep" if place in whole else "delete" if place not in kept else "thin" if is_old else "keep")
        num_newer += verdicts[-1] == "keep" and entry.is_sound
    return verdicts


def reasons(line: Sequence[Entry], keep: Keep) -> list[list[str]]:
    """Of each checkpoint the rules that keep it, as users wrote them; empty for one that nothing keeps.

    Args:
        line: newest first.
        keep: the user's policy.
    """
    found: list[list[str]] = [["damaged"] if entry.is_damaged else [] for entry in line]
    last = _newest(line, keep.last)
    for place in sorted(place for place in last if not line[place].is_damaged):
        found[place].append("the end of a fit" if line[place].pin is not None else f"last={keep.last}")
    rules = {
        f"every_steps={keep.every_steps}": _milestones(line, keep.every_steps, lambda entry: entry.step),
        f"every_epochs={keep.every_epochs}": _milestones(line, keep.every_epochs, lambda entry: entry.num_epochs),
        f"best={keep.best!r}": _best(line, keep),
    }
    for rule, places in rules.items():
        for place in places:
            found[place].append(rule)
    return found


def _newest(line: Sequence[Entry], num_kept: int) -> set[int]:
    """The newest ``num_kept`` sound ones and the pinned; damaged ones between those are left as they are."""
    stays: set[int] = set()
    num_counted, pins = 0, set[Hashable]()
    for place, entry in enumerate(line):
        if not entry.is_whole:
            continue
        if entry.pin is not None and entry.pin not in pins:
            pins.add(entry.pin)
            stays.add(place)
        elif num_counted < num_kept:
            stays.add(place)
            num_counted += entry.is_sound and entry.pin is None
    return stays


def _oldest_first(line: Sequence[Entry]) -> list[tuple[int, Entry]]:
    return [(place, e) for place, e in enumerate(line) if e.ref.serial is not None and not e.problem][::-1]


def _milestones(line: Sequence[Entry], every: int | None, count: Callable[[Entry], int | None]) -> list[int]:
    """Of each multiple of ``every``, the first at or after it."""
    if every is None:
        return []
    firsts: dict[int, int] = {}
    for place, entry in _oldest_first(line):
        number = (count(entry) or 0) // int(every)
        if number:
            firsts.setdefault(number, place)
    return list(firsts.values())


def _best(line: Sequence[Entry], keep: Keep) -> list[int]:
    place = best_of(line, keep)
    return [] if place is None else [place]


def best_of(line: Sequence[Entry], keep: Keep) -> int | None:
    """The place of the checkpoint that ``keep.best`` keeps; None where it names no metric, or none has a value.

    Args:
        line: newest first.
        keep: the user's policy.
    """
    if keep.best is None:
        return None
    sign = 1 if keep.mode == "min" else -1
    known: list[tuple[float, int]] = [
        (sign * value, place) for place, e in _oldest_first(line) if (value := e.metric(keep.best)) is not None
    ]
    return min(known, key=lambda pair: pair[0])[1] if known else None  # of equal ones the first, so the oldest


def recorded_keep(attempt: Attempt) -> Keep | None:
    """The policy that an attempt has written down; None for one that did not, or whose file somebody made."""
    found = attempt.info.get("keep")
    try:
        return as_policy(Keep, found, "keep") if isinstance(found, dict) else None
    except (TypeError, ValueError):
        return None
