"""What a run's directory tells: sizes, seconds that saves took, how often it saved and how often it was interrupted.

Only manifests, claims and histories are read: no tensor, and nothing is written. A seal says that nothing was altered
by accident, not who wrote it, so every number is checked before it is used.
"""

from __future__ import annotations

import itertools
import logging
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from resume_core.cli.plan.sizes import MODEL, TRAINING, Part
from resume_core.directory import look_at
from resume_core.errors import CheckpointNotFoundError, CorruptCheckpointError
from resume_core.goodput import Account, account, is_interruption
from resume_core.no_run import no_run
from resume_core.policy import Keep
from resume_core.storage import Lineage, Manifest, PastAttempt
from resume_core.storage.keeping import recorded_keep
from resume_core.storage.paths import parse_rank_file

__all__ = ["Run", "look"]

_NUM_MANIFESTS = 5  # that are looked at where no history tells of saves
_NUM_SAVES = 50  # the newest, whose median is taken
_NUM_INTERRUPTIONS = 2  # fewer say little of the time between them
_WHAT = {MODEL: "weights and buffers", TRAINING: "optimizer, scheduler, callbacks, loops"}


@dataclass(frozen=True)
class Run:
    """What was read. Measured values are medians, and None where nothing tells.

    Attributes:
        url: of the directory.
        checkpoint: the newest that can be used.
        step: optimizer steps done there.
        parts: of that checkpoint.
        first_rank_bytes: what rank 0 has staged and written of it.
        num_ranks: that train together.
        num_saves: that the medians are of.
        blocking_s: that a save stopped training.
        durable_s: from the begin of a save until it was in the directory.
        drain_s: until the next save could follow it there.
        copy_bytes_per_s: at which rank 0 staged.
        write_bytes_per_s: at which it wrote, or promoted from a scratch.
        interval_s: of training between two saves on schedule.
        steps_per_s: while it trained.
        mtbf_s: mean time between interruptions, with two or more of them.
        num_interruptions: of the run.
        restart_s: from when an attempt that was interrupted was heard of last until the next one trained.
        goodput: share of the wall time that was training that was kept.
        keep: what the newest attempt keeps; None where it has not written that down.
        notes: what has to be said, a sentence each.
    """

    url: str
    checkpoint: str
    step: int
    parts: list[Part]
    first_rank_bytes: int
    num_ranks: int
    num_saves: int = 0
    blocking_s: float | None = None
    durable_s: float | None = None
    drain_s: float | None = None
    copy_bytes_per_s: float | None = None
    write_bytes_per_s: float | None = None
    interval_s: float | None = None
    steps_per_s: float | None = None
    mtbf_s: float | None = None
    num_interruptions: int = 0
    restart_s: float | None = None
    goodput: float | None = None
    keep: Keep | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def size_bytes(self) -> int:
        """Of that checkpoint."""
        return sum(part.size_bytes for part in self.parts)


def look(url: str, options: Mapping[str, Any]) -> Run:
    """Read what a run's directory tells.

    Args:
        url: a local path, or any URL that fsspec knows.
        options: for fsspec.

    Raises:
        CheckpointNotFoundError: there is no checkpoint.
        CorruptCheckpointError: there are, and none of them can be used.
        ValueError: a URL that cannot be meant.
        ImportError: the package for that protocol is missing.
        OSError: the store cannot be read.
    """
    lineage = look_at(url, None, options).glance()
    notes: list[str] = []
    manifests = list(itertools.islice(_sound(lineage, notes), _NUM_MANIFESTS))
    place, newest_attempt = lineage.store.url, lineage.newest()
    if not manifests or newest_attempt is None:
        raise _nothing(lineage, notes)
    newest = manifests[0]
    if not (step := _step(newest)):
        notes.append("It was saved before the first step: what the optimizer keeps from then on is not in it.")
    past = account(lineage, newest_attempt.name, logging.getLogger("exact_resume"))
    attempts = [share.past for share in past.shares]
    saves = list(itertools.chain.from_iterable(attempt.saves for attempt in attempts)) or _saves_of(manifests)
    return Run(
        url=place,
        checkpoint=newest.ref.path,
        step=step,
        parts=_parts(newest),
        first_rank_bytes=_first_rank_bytes(newest),
        num_ranks=newest.world_size,
        keep=recorded_keep(newest_attempt),
        notes=notes,
        **_measured(saves[-_NUM_SAVES:]),
        **_pace(attempts),
        **_interruptions(past, attempts),
    )


def _nothing(lineage: Lineage, notes: list[str]) -> Exception:
    place = lineage.store.url
    if notes:
        return CorruptCheckpointError(f"no checkpoint in {place} can be used. {' '.join(notes)}", path=place)
    what = f"no checkpoint in {place}" if lineage.newest() else no_run(lineage.store)
    message = f"{what}. For a run that has none yet, give --parameters, as in --parameters 7B"
    return CheckpointNotFoundError(message, path=place)


def _sound(lineage: Lineage, notes: list[str]) -> Iterator[Manifest]:
    """The manifests of the newest line, newest first; what is damaged is told in ``notes``."""
    try:
        for ref in lineage.candidates():
            try:
                yield lineage.read_manifest(ref)
            except CheckpointNotFoundError:  # pruned since it was listed
                continue
            except CorruptCheckpointError as error:
                notes.append(f"{ref.path} cannot be used and was passed over: {error}")
    except CorruptCheckpointError as error:  # what comes before an attempt is unknown
        notes.append(str(error))


def _parts(manifest: Manifest) -> list[Part]:
    shared = [Part(r.name, _WHAT[r.name], r.size_bytes) for r in manifest.files if r.name in _WHAT]
    others = sum(r.size_bytes for r in manifest.files) - sum(part.size_bytes for part in shared)
    return [*shared, Part("rank-*, *.json", "what each rank has of its own, structure", others)]


def _first_rank_bytes(manifest: Manifest) -> int:
    return sum(r.size_bytes for r in manifest.files if not parse_rank_file(r.name))


def _step(manifest: Manifest) -> int:
    progress = manifest.header.get("progress")
    step = progress.get("step") if isinstance(progress, Mapping) else None
    return step if type(step) is int and step > 0 else 0


def _saves_of(manifests: Sequence[Manifest]) -> list[Mapping[str, Any]]:
    """What manifests tell of their saves, as a history would; oldest first."""
    found: list[Mapping[str, Any]] = []
    for manifest in reversed(manifests):
        timings = manifest.header.get("timings")
        phases = dict(timings) if isinstance(timings, Mapping) else {}
        found.append({"bytes": _first_rank_bytes(manifest), "blocked_s": phases.get("stage_s"), **phases})
    return found


def _measured(saves: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Medians over saves of what they took; a save that went to a scratch first was promoted from there."""
    writing = ["promote_s" if "promote_s" in save else "write_s" for save in saves]
    return {
        "num_saves": len(saves),
        "blocking_s": _median(_number(save, "blocked_s") for save in saves),
        "durable_s": _median(_number(save, "durable_s") for save in saves),
        "drain_s": _median(_number(save, "promote_s") or _number(save, "durable_s") for save in saves),
        "copy_bytes_per_s": _median(_rate(save, "stage_s") for save in saves),
        "write_bytes_per_s": _median(_rate(save, phase) for save, phase in zip(saves, writing, strict=True)),
    }


def _pace(attempts: Sequence[PastAttempt]) -> dict[str, Any]:
    """Of the newest attempt that has trained: how often it saved, and how fast it was."""
    for attempt in reversed(attempts):
        if attempt.trained_s > 0:
            times = [_number(save, "trained_s") for save in attempt.saves if save.get("reason") == "schedule"]
            between = [
                end - begin
                for begin, end in itertools.pairwise(time for time in times if time is not None)
                if end > begin
            ]
            steps = attempt.at["step"] - (attempt.resumed["step"] if attempt.resumed else 0)
            return {
                "interval_s": _median(between),
                "steps_per_s": steps / attempt.trained_s if steps > 0 else None,
            }
    return {}


def _interruptions(past: Account, attempts: Sequence[PastAttempt]) -> dict[str, Any]:
    # that both are times is what `account` has checked
    restarts = [
        (datetime.fromisoformat(after.started) - datetime.fromisoformat(before.seen)).total_seconds()
        + after.first_batch_s
        for before, after in itertools.pairwise(attempts)
        if is_interruption(before) and after.resumed is not None and after.first_batch_s is not None
    ]
    is_enough = past.interruptions >= _NUM_INTERRUPTIONS
    return {
        "mtbf_s": past.mtbf_s if is_enough and past.up_s > 0 else None,
        "num_interruptions": past.interruptions,
        "restart_s": _median(seconds for seconds in restarts if seconds > 0) if is_enough else None,
        "goodput": past.goodput,
    }


def _number(save: Mapping[str, Any], name: str) -> float | None:
    value: Any = save.get(name)
    is_time = type(value) in (int, float) and math.isfinite(value) and 0 < value < 1e9
    return float(value) if is_time else None


def _rate(save: Mapping[str, Any], name: str) -> float | None:
    seconds, size_bytes = _number(save, name), save.get("bytes")
    return size_bytes / seconds if seconds and type(size_bytes) is int and size_bytes > 0 else None


def _median(values: Iterable[float | None]) -> float | None:
    found = [value for value in values if value is not None]
    return statistics.median(found) if found else None
