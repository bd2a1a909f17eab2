"""What interruptions have cost a run, as the histories of its attempts tell.

*Goodput* is the time in steps that were kept, as a share of the wall time: from the first start of the run until it was
heard of last, the hours between two attempts included. What was trained and not kept was trained again.

An *interruption* is what the machine does to a run, see `is_interruption`.

An attempt that was killed was *heard of last* when it wrote its history or took a checkpoint, whichever was later. What
it did after that is not known to anybody, so its times are the least that they can be: too short by a tenth of the
attempt's age, and never by more than a minute (see `resume_core.history`).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime

from resume_core.errors import CorruptCheckpointError, ResumeError
from resume_core.heard import read_heard
from resume_core.storage import CheckpointRef, Lineage, PastAttempt, relatives
from resume_core.storage.histories import is_durable

__all__ = ["Account", "Share", "account", "is_interruption", "read_histories"]

_MOST = 100  # attempts that are looked at, the newest
_LIMITS = ("max_hours", "time limit")  # see `Leaving.watch`


@dataclass(frozen=True)
class Share:
    """What one attempt has added to its run.

    Attributes:
        past: its history.
        kept_s: seconds of training that the run goes on from.
        lost_s: seconds of training that had to be, or will have to be, done again.
        lost_batches: likewise, batches.
    """

    past: PastAttempt
    kept_s: float
    lost_s: float
    lost_batches: int


@dataclass(frozen=True)
class Account:
    """What a run has cost so far.

    Attributes:
        shares: of each attempt that has left a history, oldest first.
        wall_s: from the first start until the run was heard of last.
        kept_s: of training that was kept.
        lost_s: of training that was not.
        interruptions: how many attempts the machine has cut short; see `is_interruption`.
        up_s: that all attempts were up.
    """

    shares: tuple[Share, ...]
    wall_s: float
    kept_s: float
    lost_s: float
    interruptions: int
    up_s: float

    @property
    def mtbf_s(self) -> float | None:
        """Mean time between interruptions: the time that attempts were up, over how many of them were interrupted.

        It is the estimate of greatest likelihood for interruptions that come at random; None before the first.
        """
        return self.up_s / self.interruptions if self.interruptions else None

    @property
    def goodput(self) -> float | None:
        """From 0 to 1; None where there is no time to tell it from."""
        return min(self.kept_s / self.wall_s, 1.0) if self.wall_s > 0 else None


def read_histories(lineage: Lineage, attempt: str, log: logging.Logger) -> list[PastAttempt]:
    """Those of the run that ``attempt`` belongs to, oldest first; damaged ones are named and left out.

    Raises:
        OSError: the store cannot be read.
    """
    ours, attempts = relatives(lineage, attempt), lineage.attempts()
    names = [one.name for one in attempts if one.name in ours][-_MOST:]
    found = list[PastAttempt]()
    for name in names:
        try:
            past = read_heard(lineage, name, attempts)
            if past is not None:
                _wall_s(past, past)
                found.append(past)
        except (CorruptCheckpointError, ValueError) as error:
            log.warning("the history of %s is left out: %s", name, error)
    return found


def _wall_s(first: PastAttempt, last: PastAttempt) -> float:
    """From the start of one until the other was heard of last; below 0 where clocks were set meanwhile.

    Raises:
        ValueError: that is no time.
    """
    return (_moment(last.seen) - _moment(first.started)).total_seconds()


def _moment(text: str) -> datetime:
    found = datetime.fromisoformat(text)
    if found.tzinfo is None:
        raise ValueError(f"{text!r} is a time of nowhere")
    return found


def account(lineage: Lineage, attempt: str, log: logging.Logger) -> Account:
    """The account of the run that ``attempt``, its newest, belongs to.

    Raises:
        OSError: the store cannot be read.
    """
    histories = read_histories(lineage, attempt, log)
    kept_at = _kept(lineage, attempt)
    shares = tuple(
        _share(lineage, past, kept_at.get(past.attempt), is_newest=past.attempt == attempt) for past in histories
    )
    wall_s = max(_wall_s(histories[0], histories[-1]), 0.0) if histories else 0.0
    kept_s, lost_s = sum(one.kept_s for one in shares), sum(one.lost_s for one in shares)
    ended = [past for past in histories if past.attempt != attempt or past.cause is not None]
    up_s = sum(past.up_s for past in histories)
    return Account(shares, wall_s, kept_s, lost_s, sum(map(is_interruption, ended)), up_s)


def is_interruption(past: PastAttempt) -> bool:
    """Whether the machine was taken from an attempt that has ended: it was preempted, or died without a word.

    An error of the training and Ctrl-C are none: how often to save does not follow from how often a script is mended.
    Neither is the end of the hours that a run was given.
    """
    is_limit = any(limit in (past.why or "") for limit in _LIMITS)
    return past.cause is None or (past.cause == "preempted" and not is_limit)


def _kept(lineage: Lineage, attempt: str) -> Mapping[str, CheckpointRef]:
    """Of each attempt of the line but the newest, the checkpoint that the line goes on from."""
    found = dict[str, CheckpointRef]()
    with suppress(ResumeError):
        for folder, branch in lineage.branches(attempt):
            if branch is not None:
                found[folder] = branch
    return found


def _share(lineage: Lineage, past: PastAttempt, branch: CheckpointRef | None, *, is_newest: bool) -> Share:
    if is_newest and past.cause == "finished":
        return Share(past, past.trained_s, 0.0, 0)
    since = past.resumed["batch"] if past.resumed else 0
    kept_s, batch = _newest_durable(past) if is_newest else _at(lineage, past, branch)
    kept_s = min(kept_s, past.trained_s)
    return Share(past, kept_s, past.trained_s - kept_s, max(past.at["batch"] - max(batch, since), 0))


def _newest_durable(past: PastAttempt) -> tuple[float, int]:
    """Seconds of training, and batches of the run, that the newest save of an attempt holds."""
    saves = [save for save in past.saves if is_durable(save) and "trained_s" in save]
    return (float(saves[-1]["trained_s"]), int(saves[-1]["batch"])) if saves else (0.0, 0)


def _at(lineage: Lineage, past: PastAttempt, ref: CheckpointRef | None) -> tuple[float, int]:
    """Likewise of one save; it may be newer than the history, and then its own manifest tells, while that is there."""
    if ref is None:
        return 0.0, 0
    for save in past.saves:
        if save["path"] == ref.path and "trained_s" in save:
            return float(save["trained_s"]), int(save["batch"])
    with suppress(ResumeError, OSError, KeyError, TypeError):
        header = lineage.read_manifest(ref).header
        return float(header["trained_s"]), int(header["progress"]["batch"])
    return 0.0, 0
