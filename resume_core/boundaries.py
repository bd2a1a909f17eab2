"""At which boundaries the ranks meet, and what rank 0 decides there: save, wait, or train on.

One rank alone has a meeting when something has ended or is due. Several ranks meet without a message a step: where
steps or epochs say that a save is due, which all see alike; while a save is due and cannot be taken yet; at the last
boundary; and otherwise at a batch that rank 0 names at the meeting before, seconds ahead. Only rank 0's clock counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from resume_core.errors import ResumeError, SaveFailedError, SupersededError
from resume_core.flights import merge
from resume_core.ranks import Ranks
from resume_core.saves import Saves
from resume_core.schedule import Schedule
from resume_core.state import Progress

__all__ = ["Boundaries", "first_asked"]

_MEET_S = 2.0  # between meetings of several ranks, about
_MAX_BATCHES_APART = 10_000
_PART_S = 10.0  # after an error, until the other ranks have heard of it


class Boundaries:
    """Those of one attempt.

    Args:
        ranks: each of which has one of these.
        schedule: when a save is due.
        saves: those of the attempt.
        asked: why this rank should leave, None when it should not; a look at it costs next to nothing.
        early: whether something has come to this rank that is worth a save; it says so once.
        pauses_s: how long this rank has measured pauses to be, by kind.
        alarm: why training should stop, as this rank sees it; None when it should not.
        holds: whether saves that are due have to wait; alike on all ranks.
    """

    def __init__(
        self,
        ranks: Ranks,
        schedule: Schedule,
        saves: Saves,
        *,
        asked: Callable[[], str | None],
        early: Callable[[], bool],
        pauses_s: Mapping[str, float],
        alarm: Callable[[], str | None],
        holds: Callable[[], bool],
    ) -> None:
        self._ranks, self._schedule, self._saves = ranks, schedule, saves
        self._asked, self._early, self._alarm, self._holds = asked, early, alarm, holds
        self._measured_s = pauses_s
        self.pauses_s = self._measured_s if ranks.size == 1 else {}
        """Those of rank 0, as all ranks know them."""
        self.leaving: str | None = None
        """Why all ranks save and leave at the boundary of the last meeting; None when they train on."""
        self.alarm: str | None = None
        """Why all ranks stop there."""
        self._requested = self._anywhere = False
        self._met = (0, 0.0)  # the batch of the last meeting, and when that was
        self._meet_at = 0  # the batch of the next

    def begin(self, progress: Progress) -> None:
        """Training begins, or goes on, at ``progress``."""
        self._schedule.restart(progress)
        self._met, self._meet_at = (progress.batch, time.monotonic()), progress.batch + 1

    def request(self, *, anywhere: bool = False) -> None:
        """A save is due, whatever the schedule says; ``anywhere`` inside an accumulation window as well."""
        self._requested, self._anywhere = True, self._anywhere or anywhere

    def taken(self, progress: Progress) -> None:
        """A save was taken: none is due."""
        self._requested = self._anywhere = False
        self._schedule.restart(progress)

    def failed(self, progress: Progress) -> None:
        """A save could not be taken: try again in a while."""
        self.taken(progress)
        self._schedule.failed(self._saves.num_failed_in_a_row)

    def is_meeting(self, progress: Progress) -> bool:
        """Whether the ranks meet here; decided from what all see alike. One rank alone does when it has a reason."""
        if self._requested or progress.is_last:
            return True
        if self._ranks.size == 1:
            self._requested = self._early()
            has_reason = self._alarm() is not None or self._asked() is not None
            return self._requested or self._saves.has_ended or self._schedule.due(progress) or has_reason
        return progress.batch >= self._meet_at or self._schedule.due_by_count(progress)

    def meet(self, progress: Progress) -> list[Any] | None:
        """Learn how the save in flight ended, and where to save now.

        Returns:
            The place of a save to be taken now, None to train on, or to leave when ``leaving`` says so.

        Raises:
            SaveFailedError: the first save of a new run failed, or three saves in a row.
            SupersededError: a newer attempt of the run has started.
            ResumeError: the ranks are not at the same batch, or one did not come.
        """
        mine = {
            "at": [progress.batch, progress.step],
            "outcomes": self._saves.outcomes(),
            "asked": self._asked(),
            "early": self._early(),
            "alarm": self._alarm(),
            "pauses_s": {**self._measured_s},
        }
        decision = self._ranks.agree("a boundary", mine, lambda values: self._decide(progress, values))
        self._meet_at = decision["meet_at"]
        if self._saves.conclude(decision["outcomes"], strict=False):
            self._schedule.failed(self._saves.num_failed_in_a_row)
        elif self._ranks.is_first and decision["outcomes"]["far"][0] == "done":
            self._schedule.learn()
        self._requested, self.leaving, self.alarm = decision["requested"], decision["leaving"], decision["alarm"]
        if self._ranks.size > 1:
            self.pauses_s = decision["pauses_s"]
        place: list[Any] | None = decision["place"]
        return place

    def settle(self, *, promoted: bool = False) -> None:
        """All ranks wait until the memory that saves are staged in is free; a failure is said.

        Args:
            promoted: and until nothing is in flight at all.

        Raises:
            SaveFailedError: the first save of a new run failed, or three saves in a row.
            SupersededError: a newer attempt of the run has started.
        """
        while self._saves.in_flight if promoted else self._saves.in_memory:
            self._saves.wait() if promoted else self._saves.wait_for_memory()
            outcomes = self._ranks.agree("the last boundary", self._saves.outcomes(), merge)
            self._saves.conclude(outcomes, strict=False)

    def land(self, timeout_s: float) -> bool:
        """All ranks wait until nothing is in flight, or rank 0 has waited long enough.

        Returns:
            Whether nothing is.

        Raises:
            SaveFailedError: the first save of a new run failed, or three saves in a row.
            SupersededError: a newer attempt of the run has started.
        """
        end_s, is_over = time.monotonic() + timeout_s, False
        while self._saves.in_flight and not is_over:
            with suppress(TimeoutError):
                self._saves.wait(max(end_s - time.monotonic(), 0.0))
            mine = [self._saves.outcomes(), time.monotonic() >= end_s]
            outcomes, is_over = self._ranks.agree("the way out", mine, _merge_first)
            self._saves.conclude(outcomes, strict=False)
        return not self._saves.in_flight

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait until nothing is in flight; with several ranks for this one's share, as far as it is.

        Raises:
            SaveFailedError: a save failed.
            SupersededError: a newer attempt of the run has started.
            TimeoutError: something was in flight after ``timeout_s`` seconds.
        """
        start = time.monotonic()
        while True:
            self._saves.wait(None if timeout_s is None else max(timeout_s - (time.monotonic() - start), 0.0))
            if self._ranks.size > 1 or not self._saves.in_flight:
                return
            self._saves.conclude(self._saves.outcomes(), strict=True)

    def end(self, error: BaseException | None) -> None:
        """Training is over: wait until nothing is in flight.

        Args:
            error: what ended it, None when it ran to its end. With one, a failed save is logged and not raised, and
                several ranks do not meet: it may have ended on one of them alone. When it has ended on all, their save
                is brought to the directory as well; nobody waits long for the share of another.

        Raises:
            SaveFailedError: the last save failed.
            SupersededError: a newer attempt of the run has started.
        """
        meets = error is None or self._ranks.size == 1
        failure: ResumeError | None = None
        if not meets:
            self._ranks.hurry(_PART_S)
        self._saves.wait()
        while failure is None and self._saves.in_flight:
            outcomes = self._saves.outcomes()
            try:
                self._saves.conclude(self._ranks.agree("the end", outcomes, merge) if meets else outcomes, strict=True)
            except (SaveFailedError, SupersededError) as caught:
                failure = caught
            self._saves.wait()
        if error is not None:
            with suppress(ResumeError, RuntimeError):
                self._ranks.part(_PART_S)
            return
        self._ranks.part()
        if failure is not None:
            raise failure

    def _decide(self, progress: Progress, values: list[dict[str, Any]]) -> dict[str, Any]:
        """On rank 0, for all."""
        for rank, value in enumerate(values):
            if value["at"] != values[0]["at"]:
                raise ResumeError(
                    f"rank {rank} is at batch {value['at'][0]}, step {value['at'][1]}, and rank 0 at batch "
                    f"{progress.batch}, step {progress.step}: all ranks must train on the same number of batches"
                )
        outcomes = merge([value["outcomes"] for value in values])
        is_early = any(value["early"] for value in values)
        requested = self._requested or is_early or progress.is_last or self._schedule.due(progress)
        between = progress.is_last or not progress.in_window or self._anywhere
        leaving, alarm = first_asked(values), first_asked(values, "alarm")
        trains_on = leaving is None and alarm is None
        can_save = requested and between and trains_on and not self._holds() and self._saves.can_take(outcomes)
        return {
            "outcomes": outcomes,
            "requested": requested,
            "leaving": leaving,
            "alarm": alarm,
            "pauses_s": values[0]["pauses_s"],
            "place": self._saves.next_place(progress.step) if can_save else None,
            "meet_at": progress.batch + self._batches_to_go(progress),
        }

    def _batches_to_go(self, progress: Progress) -> int:
        """Until the next meeting, from the time that those since the last one took."""
        (batch, at_s), now_s = self._met, time.monotonic()
        self._met = progress.batch, now_s
        batch_s = (now_s - at_s) / max(progress.batch - batch, 1)
        return max(1, min(int(_MEET_S / batch_s), _MAX_BATCHES_APART)) if batch_s > 0 else 1


def first_asked(values: Sequence[Mapping[str, Any]], name: str = "asked") -> str | None:
    """Why the first of the ranks that were asked to leave should, with its number; None when none was."""
    found = [(rank, value[name]) for rank, value in enumerate(values) if value[name] is not None]
    if not found:
        return None
    rank, why = found[0]
    return f"{why} on rank {rank}" if len(values) > 1 else str(why)


def _merge_first(values: list[Any]) -> list[Any]:
    return [merge([outcomes for outcomes, _ in values]), values[0][1]]
