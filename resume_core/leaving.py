"""The way out of a run whose machine is taken away: asked for on any rank, taken by all at one boundary."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import NoReturn

from resume_core.boundaries import Boundaries, first_asked
from resume_core.errors import Preempted
from resume_core.policy import Preemption, as_notices
from resume_core.preemption import NoticeWatch, SignalWatch, job_id, requeue, seconds_left
from resume_core.ranks import Ranks
from resume_core.state import Ahead
from resume_core.storage import Tiers

__all__ = ["Leaving"]

_MARGIN_S = 15.0  # beside twice what the last batch and a save take
_SLURM_LIMIT = "the time limit of the SLURM job"
_UNKNOWN_S = 60.0  # a save, before the first was measured


class Leaving:
    """That of one attempt.

    Args:
        preemption: the user's policy.
        ranks: those that train together.
        tiers: where saves go.
        log: where messages go.
        save_s: what saving takes, as far as it was measured.
    """

    def __init__(
        self,
        preemption: Preemption,
        ranks: Ranks,
        tiers: Tiers,
        log: logging.Logger,
        save_s: Callable[[], float | None],
    ) -> None:
        self._preemption, self._ranks, self._tiers, self._log = preemption, ranks, tiers, log
        self._save_s, self._clock = save_s, time.monotonic
        self._signals = SignalWatch(preemption.signals, log)
        names = as_notices(preemption.notices, "Preemption.notices")
        self._notices = NoticeWatch(names, log, looks=_is_first_of_machine(ranks))
        self._ends: list[tuple[float, str]] = []  # when the time of this process is over, and what says so
        self._looked_s = 0.0
        self._pause: str | None = None  # the kind of the block that a signal would end
        self._over: str | None = None  # which of them has said so: a boundary is asked more than once
        self.pauses_s: dict[str, float] = {}
        """By kind, how long the longest pause was that this rank has measured."""

    def asked(self) -> str | None:
        """Why this rank should leave, None when it should not; asked at each boundary."""
        if self._signals.received is not None:
            return self._signals.received
        if self._notices.at_once is not None:
            return self._notices.at_once.why
        now_s = self._clock()
        batch_s, self._looked_s = now_s - self._looked_s, now_s
        if self._over is None and (self._ends or self._notices.ahead is not None):
            self._over = self._ended(now_s, batch_s)
        return self._over

    def early(self) -> bool:
        """Whether something has come to this rank that is worth a save; once."""
        return self._notices.take_early()

    def _ended(self, now_s: float, batch_s: float) -> str | None:
        left_s = _MARGIN_S + 2 * (batch_s + (self._save_s() or _UNKNOWN_S))
        ends, ahead = list(self._ends), self._notices.ahead
        if ahead is not None and ahead.end_s is not None:
            ends.append((now_s + ahead.end_s - time.time(), ahead.why))
        return next((why for end_s, why in ends if now_s + left_s >= end_s), None)

    @property
    def received(self) -> str | None:
        """What has asked this process to leave, clocks apart; None when nothing has."""
        notice = self._notices.at_once
        return self._signals.received or (None if notice is None else notice.why)

    def watch(self) -> None:
        """Take note of what asks for the machine, from now on."""
        self._signals.start()
        self._notices.start()
        now_s, hours, slurm_s = self._clock(), self._preemption.max_hours, seconds_left()
        self._looked_s = now_s
        if hours is not None:
            self._ends.append((now_s + hours * 3600, f"Preemption(max_hours={hours:g})"))
        if slurm_s is not None and self._preemption.signals:
            self._ends.append((now_s + slurm_s, _SLURM_LIMIT))

    def stop(self) -> None:
        """The run is over: signals are others' again, and nothing is asked for notices."""
        if self._signals.has_raised and self._pause is not None:
            self._cut_short(self._pause)
        self._signals.stop()
        self._notices.stop()

    def _cut_short(self, kind: str) -> None:
        """A signal has ended a block of that kind: said here, as its handler runs in the middle of anything."""
        self._pause, why = None, self.received or "a signal"
        self._log.warning(
            "%s: the run was saved before this %s, and is not kept until its end, as one has taken longer than "
            "Preemption(grace_s=%g); this process ends with code %d",
            *(why, kind, self._preemption.grace_s, self._preemption.exit_code),
        )
        self._requeue(why)

    def agreed(self) -> str | None:
        """Why all ranks should leave before their first batch; None when they should not.

        Not because of a clock, or of a notice, which may stand there for long: a run whose time is short must get on by
        a batch at least.
        """
        found: str | None = self._ranks.agree("the first batch", {"asked": self._signals.received}, first_asked)
        return found

    def is_long(self, pauses_s: Mapping[str, float], ahead: Ahead) -> bool:
        """Whether a pause of a kind that ``ahead`` gives may last longer than the machine after a signal."""
        if not pauses_s or not self._signals.is_watching:
            return False
        long = {kind for kind, pause_s in pauses_s.items() if pause_s > self._preemption.grace_s}
        return bool(long) and not long.isdisjoint(ahead())

    @contextmanager
    def pause(self, kind: str, pauses_s: Mapping[str, float], *, is_saved: bool) -> Iterator[None]:
        """A block with no boundary in it. Where that is known to be long and all was saved before it, a signal ends the
        process at once; any other block is brought to its end.

        Args:
            kind: of the block, for example ``"validation"``.
            pauses_s: as all ranks know them.
            is_saved: whether the last boundary was.
        """
        start_s, outer = self._clock(), self._signals.at_once
        try:
            if is_saved and self.is_long(pauses_s, lambda: [kind]):
                self._signals.at_once, self._pause = Preempted(self._preemption.exit_code), kind
                # a notice may have come to another rank alone, which this one would wait for in vain
                has_notice = self._notices.at_once is not None and self._ranks.size == 1
                if self._signals.received is not None or has_notice:
                    self._signals.raise_at_once()
            yield
        finally:
            self._signals.at_once = outer
        self.pauses_s[kind] = max(self.pauses_s.get(kind, 0.0), self._clock() - start_s)

    def leave(self, why: str, step: int, boundaries: Boundaries, save: Callable[[], None]) -> NoReturn:
        """Save, wait until that is where it belongs, and end the process; on all ranks at one boundary.

        Args:
            why: as `agreed` or a meeting gave it.
            step: optimizer steps done.
            boundaries: of the attempt.
            save: takes the save, if there is anything that was not saved.

        Raises:
            Preempted: always, unless something worse is raised.
            SaveFailedError: the first save of a new run failed, or three saves in a row.
            SupersededError: a newer attempt of the run has started.
        """
        end_s, limit = self._end(why)
        code = self._preemption.exit_code
        self._log.warning("%s: the run is saved at step %d, then this process ends with code %d", why, step, code)
        boundaries.settle()  # the memory is free
        save()
        boundaries.settle()  # it is on the nearest tier
        if not boundaries.land(end_s - time.monotonic()):
            self._log.warning(
                "the save at step %d is on %s alone: %s takes longer than %s. It is still being brought there.",
                *(step, self._tiers.stores[0].url, self._tiers.directory.url, limit),
            )
            boundaries.settle(promoted=True)
        self._requeue(why)
        raise Preempted(code)

    def _end(self, why: str) -> tuple[float, str]:
        """When this machine goes, by ``time.monotonic``, as far as this rank knows; and what says so."""
        notice = self._notices.at_once or self._notices.ahead
        if notice is not None and notice.end_s is not None and why.startswith(notice.why):
            return time.monotonic() + notice.end_s - time.time(), "the notice leaves time for"
        grace_s = self._preemption.grace_s
        start_s = self._signals.received_s or time.monotonic()
        return start_s + grace_s, f"the {grace_s:g} s of Preemption(grace_s=...)"

    def _requeue(self, why: str) -> None:
        """Once, as the process ends here: by rank 0, when every rank has saved; not where SLURM does it, or nobody
        wants it."""
        job, signalled = job_id(), why.startswith("SIG") and not why.startswith("SIGTERM")
        wanted = self._preemption.requeue and (signalled or why.startswith(_SLURM_LIMIT))
        if wanted and self._ranks.is_first and job is not None:
            requeue(job, self._log)


def _is_first_of_machine(ranks: Ranks) -> bool:
    """Whether this rank looks for notices: one of each machine does, and all of them where that cannot be told."""
    place = os.environ.get("LOCAL_RANK") or os.environ.get("SLURM_LOCALID") or "0"
    return ranks.size == 1 or place == "0"
