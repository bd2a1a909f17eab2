"""What is in a run's directory, read from small files alone: claims, histories and manifests."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

from resume_core.cli.divergence import find_divergence
from resume_core.cli.names import open_run
from resume_core.ends import finished_fit
from resume_core.errors import CheckpointNotFoundError, CorruptCheckpointError, ResumeError
from resume_core.heard import read_heard
from resume_core.storage import Attempt, Brief, CheckpointRef, Lineage, PastAttempt, Store
from resume_core.storage.keeping import Entry, reasons, recorded_keep
from resume_core.storage.manifests import read_weights_brief
from resume_core.storage.missing_manifests import newest_missing
from resume_core.storage.newer import by_step
from resume_core.storage.retention import line_entries, off_line, outlook

__all__ = ["AttemptListed", "CheckpointListed", "Listing", "listing"]

_GOES = "it goes after the next save"


@dataclass(frozen=True)
class CheckpointListed:
    """A checkpoint. Numbers are None where its manifest is damaged.

    Attributes:
        path: below the run's directory.
        state: ``"committed"``, ``"weights only"`` or ``"damaged"``, as far as its manifest tells: no
            data is read.
        step: optimizer steps done.
        epoch: of its last batch.
        batch: batches trained on.
        reason: why it was saved.
        time: when, as ISO 8601.
        size_bytes: of its files.
        tiers: where it is committed, nearest first.
        is_on_line: whether the next start may go on from it.
        kept_by: the rules of `Keep` that keep it; None where that cannot be told.
        off_line: what becomes of one that is on no line; None for others, and where that cannot be told.
        problem: what is wrong with it.
        metric: the value that the run's ``Keep(best=)`` goes by; None where there is none, or it is not finite.
    """

    path: str
    state: str
    step: int | None = None
    epoch: int | None = None
    batch: int | None = None
    reason: str | None = None
    time: str | None = None
    size_bytes: int | None = None
    tiers: list[str] = field(default_factory=list)
    is_on_line: bool = False
    kept_by: list[str] | None = None
    off_line: str | None = None
    problem: str | None = None
    metric: float | None = None


@dataclass(frozen=True)
class AttemptListed:
    """One start of the job.

    Attributes:
        name: its folder.
        resumed_from: the checkpoint that it went on from; None for one that began anew.
        history: what it has told of itself; None where it left nothing.
        diverged: since when its loss is no finite number, the fields of `Divergence`; None where it is one.
        checkpoints: the newest first.
        num_not_shown: older ones that were not read.
    """

    name: str
    resumed_from: str | None
    history: Mapping[str, Any] | None
    diverged: Mapping[str, Any] | None
    checkpoints: list[CheckpointListed]
    num_not_shown: int


@dataclass(frozen=True)
class Listing:
    """A run.

    Attributes:
        url: of its directory.
        attempts: the newest first.
        damaged: what is wrong with attempts that cannot be read.
        best: the metric that the run's best checkpoint goes by, as in ``Keep(best=)``; None where it keeps none.
    """

    url: str
    attempts: list[AttemptListed]
    damaged: list[str]
    best: str | None = None

    def as_json(self) -> dict[str, Any]:
        """Strict JSON. Nothing in it is copied: there may be thousands of checkpoints."""
        attempts = [vars(one) | {"checkpoints": [vars(each) for each in one.checkpoints]} for one in self.attempts]
        return vars(self) | {"attempts": attempts}


def listing(
    url: str, *, scratch: str | None = None, options: Mapping[str, Any] | None = None, most: int | None = None
) -> Listing:
    """Look at a run.

    Args:
        url: of its directory.
        scratch: the run's fast local directory.
        options: for fsspec.
        most: how many checkpoints are read, the newest; None for all.

    Raises:
        CheckpointNotFoundError: there is no run.
        ValueError: a URL that cannot be meant.
        OSError: the store cannot be read.
    """
    lineage, attempts, damaged = open_run(url, scratch, options)
    num = sum(len(lineage.names(attempt.name)) for attempt in attempts)
    look, found = _Look(lineage, attempts, knows_all=most is None or num <= most), []
    for attempt in reversed(attempts):
        names = look.names(attempt.name)
        shown = names if most is None else names[: max(most, 0)]
        most = None if most is None else most - len(shown)
        lineage.tiers.read_ahead(attempt.name, shown)
        checkpoints = [look.checkpoint(CheckpointRef(attempt.name, name)) for name in shown]
        origin = attempt.restored_from
        found.append(
            AttemptListed(
                attempt.name,
                origin.path if origin is not None else None,
                look.history(attempt.name),
                look.diverged(attempt),
                [one for one in checkpoints if one is not None],
                len(names) - len(shown),
            )
        )
    return Listing(lineage.store.url, found, damaged, look.best)


class _Look:
    """One look at a run.

    Args:
        lineage: a glance at it.
        attempts: all of them, oldest first.
        knows_all: whether every manifest is read, so that it can be told which rule keeps what.
    """

    def __init__(self, lineage: Lineage, attempts: list[Attempt], *, knows_all: bool) -> None:
        self._lineage, self._attempts, self._knows_all = lineage, attempts, knows_all
        self._line = dict[str, CheckpointRef | None]()
        self._kept_by = dict[str, list[str]]()
        self._pasts = dict[str, PastAttempt | None]()
        self.best: str | None = None
        """The metric of the run's ``Keep(best=)``."""
        if not attempts:
            return
        with suppress(ResumeError):  # damage, which is told elsewhere
            self._line.update(lineage.branches(attempts[-1].name))
        keep = recorded_keep(attempts[-1])
        self.best = None if keep is None else keep.best
        if knows_all and keep is not None:
            line, _ = line_entries(lineage, attempts[-1], finished_fit)
            self._kept_by = {entry.ref.path: rules for entry, rules in zip(line, reasons(line, keep), strict=True)}

    def names(self, attempt: str) -> list[str]:
        """The checkpoints of an attempt by their steps, the newest first."""
        return sorted(self._lineage.names(attempt), key=by_step, reverse=True)

    def history(self, attempt: str) -> Mapping[str, Any] | None:
        past = self._past(attempt)
        return None if past is None else _told(past)

    def diverged(self, attempt: Attempt) -> Mapping[str, Any] | None:
        found = find_divergence(self._lineage, attempt, self._attempts, self._past)
        return None if found is None else asdict(found)

    def _past(self, attempt: str) -> PastAttempt | None:
        if attempt not in self._pasts:
            try:
                self._pasts[attempt] = read_heard(self._lineage, attempt, self._attempts)
            except CorruptCheckpointError:
                self._pasts[attempt] = None
        return self._pasts[attempt]

    def checkpoint(self, ref: CheckpointRef) -> CheckpointListed | None:
        """None for a folder in which nothing is committed, or of which nothing is left."""
        tiers = self._lineage.tiers.committed(ref)
        try:
            if tiers:
                return self._listed(self._lineage.read_brief(ref), tiers, "committed")
            if holding := self._lineage.tiers.with_weights(ref):
                return self._listed(read_weights_brief(holding[-1], ref), holding, "weights only")
        except CheckpointNotFoundError:  # deleted meanwhile
            return None
        except CorruptCheckpointError as error:
            return CheckpointListed(ref.path, "damaged", tiers=[store.url for store in tiers], problem=str(error))
        problem = self._missing.get(ref.path)
        return None if problem is None else CheckpointListed(ref.path, "damaged", problem=problem)

    @cached_property
    def _missing(self) -> dict[str, str]:
        """What is wrong with those that have lost their manifest; asked for when there is a folder without one."""
        return {one.ref.path: str(one) for one in newest_missing(self._lineage, self._lineage)}

    @cached_property
    def _off_line(self) -> dict[str, str]:
        """By path what becomes of those that are on no line; asked for when there is one."""
        newest, view = self._attempts[-1], self._lineage.on(self._lineage.store)
        keep = recorded_keep(newest)
        if keep is None or not self._knows_all:
            return {}
        with suppress(ResumeError):  # damage, which is told elsewhere
            seen = outlook(view, keep, newest, finished_fit)
            return {removal.folder: _GOES for removal in seen.removals} | dict(off_line(view, seen, keep, newest))
        return {}

    def _listed(self, brief: Brief, tiers: list[Store], state: str) -> CheckpointListed:
        header, ref = brief.header, brief.ref
        progress: Any = header.get("progress")
        place: Mapping[str, Any] = progress if isinstance(progress, dict) else {}
        branch = self._line.get(ref.attempt)
        before = branch is None or (ref.serial or 0) <= (branch.serial or 0)
        is_on_line = ref.attempt in self._line and before
        return CheckpointListed(
            path=ref.path,
            state=state,
            step=_number(place, "step"),
            epoch=_number(place, "epoch"),
            batch=_number(place, "batch"),
            reason=_text(header, "reason"),
            time=_text(header, "time"),
            size_bytes=brief.size_bytes,
            tiers=[store.url for store in tiers],
            is_on_line=state == "committed" and is_on_line,
            kept_by=self._kept_by.get(ref.path),
            off_line=None if is_on_line else self._off_line.get(ref.path),
            metric=None if self.best is None else Entry(ref, header).metric(self.best),
        )


def _told(past: PastAttempt) -> dict[str, Any]:
    """What people ask of a history."""
    return {
        "host": past.host,
        "started": past.started,
        "seen": past.seen,
        "trained_s": past.trained_s,
        "batch": past.at["batch"],
        "step": past.at["step"],
        "cause": past.cause,
        "why": past.why,
    }


def _number(fields: Mapping[str, Any], name: str) -> int | None:
    value = fields.get(name)
    return value if isinstance(value, int) else None


def _text(fields: Mapping[str, Any], name: str) -> str | None:
    value = fields.get(name)
    return value if isinstance(value, str) else None
