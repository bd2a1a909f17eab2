"""All that a report tells, read from the small files of a run: claims, histories, manifests, checks."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from typing import Any

from resume_core.capture.as_saved import goes_on_as_saved
from resume_core.cli.divergence import Divergence, find_divergence
from resume_core.cli.names import open_run
from resume_core.cli.report.curve import Gap, Point, gaps, points
from resume_core.errors import CheckpointNotFoundError, ResumeError
from resume_core.goodput import Account, Share, account
from resume_core.storage import Attempt, Lineage, read_check
from resume_core.storage.paths import CHECK_FILE, join_key, parse_checkpoint_folder

__all__ = ["AttemptTold", "Report", "SaveTold", "report"]

_CHECKED = {"verdict": str, "steps": int, "num_rows": int, "reason": str}
_MOST_ATTEMPTS = 100  # as many as `account` looks at


@dataclass(frozen=True)
class SaveTold:
    """A save. Times are seconds, and None where it did not come so far.

    Attributes:
        attempt: that took it.
        path: of the checkpoint.
        step: optimizer steps done.
        time: when it was taken, as ISO 8601.
        reason: why.
        size_bytes: that rank 0 wrote.
        blocked_s: that training waited.
        durable_s: until it was in the directory.
        failed: whether it came to nothing.
    """

    attempt: str
    path: str
    step: int | None
    time: str | None
    reason: str
    size_bytes: int | None
    blocked_s: float | None
    durable_s: float | None
    failed: bool


@dataclass(frozen=True)
class AttemptTold:
    """One start of the job. What a history tells is None where there is none.

    Attributes:
        name: its folder.
        resumed_from: the checkpoint that it went on from.
        resumed_step: optimizer steps done there.
        host: where it ran.
        started: as ISO 8601.
        seen: when it was heard of last.
        first_batch_s: until it trained.
        trained_s: from then on, without what saves kept waiting.
        reached_step: optimizer steps done when it was heard of last.
        kept_s: of training that the run goes on from.
        lost_s: of training that was done again.
        lost_batches: likewise, batches.
        replayed: the first and last step that a later attempt trained again; None where it trained none.
        cause: what ended it; ``"killed"`` where nothing was said and another attempt came after it.
        why: a sentence about that.
        accepted: differences of configuration that it went on with; ``is_applied`` says which value it has.
        check: what comparing its first steps with recorded ones gave.
        diverged: since when its loss is no finite number; None where it is one.
    """

    name: str
    resumed_from: str | None
    resumed_step: int | None
    host: str | None = None
    started: str | None = None
    seen: str | None = None
    first_batch_s: float | None = None
    trained_s: float | None = None
    reached_step: int | None = None
    kept_s: float | None = None
    lost_s: float | None = None
    lost_batches: int | None = None
    replayed: tuple[int, int] | None = None
    cause: str | None = None
    why: str | None = None
    accepted: Sequence[Mapping[str, Any]] = ()
    check: Mapping[str, Any] | None = None
    diverged: Divergence | None = None


@dataclass(frozen=True)
class Report:
    """A run.

    Attributes:
        url: of its directory.
        made: when this was read, as ISO 8601.
        attempts: oldest first.
        saves: oldest first.
        points: values over steps, all of them finite.
        gaps: steps whose values are not.
        wall_s: from the first start until the run was heard of last.
        kept_s: of training that was kept.
        lost_s: of training that was not.
        starting_s: from starts until the first batch.
        blocked_s: that training waited for saves.
        away_s: between attempts.
        interruptions: how many.
        mtbf_s: mean time between them.
        goodput: share of the wall time that was training that was kept.
        notes: what could not be read, a sentence each.
    """

    url: str
    made: str
    attempts: list[AttemptTold]
    saves: list[SaveTold]
    points: list[Point]
    gaps: list[Gap]
    wall_s: float
    kept_s: float
    lost_s: float
    starting_s: float
    blocked_s: float
    away_s: float
    interruptions: int
    mtbf_s: float | None
    goodput: float | None
    notes: list[str]

    def as_json(self) -> dict[str, Any]:
        """Strict JSON."""
        return asdict(self)


class _Notes(logging.Handler):
    """What `account` has to say goes into the report."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())


def report(url: str, options: Mapping[str, Any] | None = None) -> Report:
    """Read what a run has told of itself. Nothing is written there.

    Args:
        url: of its directory.
        options: for fsspec.

    Raises:
        CheckpointNotFoundError: there is no run.
        ValueError: a URL that cannot be meant.
        OSError: the store cannot be read.
    """
    lineage, attempts, notes = open_run(url, None, options)
    if len(attempts) > _MOST_ATTEMPTS:
        notes.append(f"{len(attempts) - _MOST_ATTEMPTS} older attempts are left out")
        attempts = attempts[-_MOST_ATTEMPTS:]
    if not attempts:
        raise CheckpointNotFoundError(f"no attempt in {url} can be read. {' '.join(notes)}", path=url)
    log, heard = logging.Logger("report"), _Notes()
    log.addHandler(heard)
    past = account(lineage, attempts[-1].name, log)
    shares = {share.past.attempt: share for share in past.shares}
    told = [_attempt(lineage, one, shares, attempts, notes) for one in attempts]
    pasts = {share.past.attempt: share.past for share in past.shares}
    values = [list(points(lineage, one.name, pasts.get(one.name))) for one in attempts]
    found = [point for own in values for point in own if math.isfinite(point.value)]
    lost = [gap for own in values for gap in gaps(own)]
    saves = [save for share in past.shares for save in _saves(share)]
    made = datetime.now(timezone.utc).isoformat(timespec="seconds")
    return Report(lineage.store.url, made, told, saves, found, lost, **_sums(past), notes=notes + heard.said)


def _sums(past: Account) -> dict[str, Any]:
    attempts = [share.past for share in past.shares]
    blocked_s = sum(float(one.earlier.get("blocked_s", 0.0)) for one in attempts)
    blocked_s += sum(_number(save, "blocked_s") or 0.0 for one in attempts for save in one.saves)
    return {
        "wall_s": past.wall_s,
        "kept_s": past.kept_s,
        "lost_s": past.lost_s,
        "starting_s": sum(one.first_batch_s if one.first_batch_s is not None else one.up_s for one in attempts),
        "blocked_s": blocked_s,
        "away_s": max(past.wall_s - past.up_s, 0.0),
        "interruptions": past.interruptions,
        "mtbf_s": past.mtbf_s,
        "goodput": past.goodput,
    }


def _attempt(
    lineage: Lineage, one: Attempt, shares: Mapping[str, Share], attempts: Sequence[Attempt], notes: list[str]
) -> AttemptTold:
    origin, accepted, share = one.restored_from, one.info.get("accepted"), shares.get(one.name)
    told: dict[str, Any] = {}
    if share is not None:
        past = share.past
        names = ("host", "started", "seen", "first_batch_s", "trained_s", "cause", "why")
        told = {name: getattr(past, name) for name in names}
        told["cause"] = past.cause or (None if one is attempts[-1] else "killed")
        told |= {"kept_s": share.kept_s, "lost_s": share.lost_s, "lost_batches": share.lost_batches}
        reached = max([past.at["step"], *_left_at(one, attempts)])  # a killed one's history may be older than its saves
        pasts = {share.past.attempt: share.past for share in shares.values()}
        told["diverged"] = find_divergence(lineage, one, attempts, pasts.get)
        told |= {"reached_step": reached, "replayed": _replayed(one, reached, attempts)}
    return AttemptTold(
        name=one.name,
        resumed_from=origin.path if origin else None,
        resumed_step=_step(origin.name) if origin else None,
        accepted=list(_accepted(accepted)),
        check=_check(lineage, one.name, notes),
        **told,
    )


def _accepted(found: Any) -> Iterator[Mapping[str, Any]]:
    """Each with whether it is applied, which attempts of before 1.0 have not written down."""
    for each in found if isinstance(found, list) else ():
        if isinstance(each, Mapping):
            applied = each.get("is_applied")
            known = applied if isinstance(applied, bool) else not goes_on_as_saved(str(each.get("name")))
            yield {**each, "is_applied": known}


def _replayed(one: Attempt, reached: int, attempts: Sequence[Attempt]) -> tuple[int, int] | None:
    """The steps of an attempt that the next one, which went on from before its end, has trained again."""
    left_at = _left_at(one, attempts)
    return (left_at[-1], reached) if left_at and left_at[-1] < reached else None


def _left_at(one: Attempt, attempts: Sequence[Attempt]) -> list[int]:
    """The steps at which later attempts went on from an attempt."""
    origins = [other.restored_from for other in attempts if other.restored_from is not None]
    steps = [_step(origin.name) for origin in origins if origin.attempt == one.name]
    return [step for step in steps if step is not None]


def _step(name: str) -> int | None:
    place = parse_checkpoint_folder(name)
    return place and place[0]


def _check(lineage: Lineage, attempt: str, notes: list[str]) -> Mapping[str, Any] | None:
    try:
        result = read_check(lineage.store, attempt)
        return None if result is None else {name: kind(result.get(name) or kind()) for name, kind in _CHECKED.items()}
    except (ResumeError, TypeError, ValueError) as error:
        notes.append(f"{lineage.store.locate(join_key(attempt, CHECK_FILE))}: {error}")
        return None


def _saves(share: Share) -> list[SaveTold]:
    return [
        SaveTold(
            attempt=share.past.attempt,
            path=str(save["path"]),
            step=_step(str(save["path"]).rpartition("/")[2]),
            time=str(save["time"]) if save.get("time") else None,
            reason=str(save.get("reason") or ""),
            size_bytes=save["bytes"] if type(save.get("bytes")) is int else None,
            blocked_s=_number(save, "blocked_s"),
            durable_s=_number(save, "durable_s"),
            failed=save.get("end") == "failed",
        )
        for save in share.past.saves
    ]


def _number(save: Mapping[str, Any], name: str) -> float | None:
    value = save.get(name)
    return float(value) if type(value) in (int, float) and 0 <= float(value) < 1e12 else None  # type: ignore[arg-type]
