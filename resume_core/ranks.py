"""Agreement of the processes that train together: rank 0 decides, every wait has an end and names who is missing.

It goes through the key-value store that ``torch.distributed`` was initialised with, not through collectives: a
collective that one rank does not reach blocks all others without saying whose fault it is, and may not be mixed with
those of the training that are still in flight.

Each call of `Ranks.agree` is a meeting: every rank calls it in the same order with the same ``what``::

    rank k     <what>/<number>/<k>      its value, as JSON
    rank 0     <what>/<number>/decision what `decide` made of all values
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

import torch.distributed

from resume_core import errors
from resume_core.errors import ResumeError

__all__ = ["AGREE_S", "Ranks", "refuse_lone_rank"]

AGREE_S = 1800.0
"""Seconds that a meeting waits, as long as the process groups of torch do: a rank may still be reading its data."""

_PAUSE_S = 0.05  # between two looks, at most; ranks that train together come within milliseconds
_SAY_AFTER_S = 60.0
_LAST_WORD_S = 10.0  # that rank 0 stays for the others to read why it stops

_calls = itertools.count()  # every rank counts alike
_log = logging.getLogger(__name__)
Decide = Callable[[list[Any]], Any]
_T = TypeVar("_T")


class Ranks:
    """The ranks of one run, as one of them sees them.

    Args:
        rank: this one.
        size: how many there are.
        store: of ``torch.distributed`` (any ``torch.distributed.Store``); None for a single process.
        timeout_s: how long a meeting waits for a rank that does not come.

    Raises:
        ValueError: a rank outside the world, or several ranks without a store.
    """

    def __init__(self, rank: int = 0, size: int = 1, store: Any = None, *, timeout_s: float = AGREE_S) -> None:
        if not 0 <= rank < size:
            raise ValueError(f"rank {rank} is not in a world of {size}")
        if size > 1 and store is None:
            raise ValueError(f"{size} ranks cannot agree without a store")
        self.rank, self.size = rank, size
        self._store, self._timeout_s = store, timeout_s
        self._number = 0
        self._last = ""
        self._hurry: tuple[float, float] | None = None

    @classmethod
    def of_torch(cls, rank: int, size: int) -> Ranks:
        """The ranks of ``torch.distributed``, which is initialised; each call has keys of its own in its store.

        Args:
            rank: this one.
            size: how many there are; all of them call this in the same order.
        """
        dist: Any = torch.distributed
        place = f"exact_resume/{next(_calls)}"
        return cls(rank, size, dist.PrefixStore(place, dist.distributed_c10d._get_default_store()))

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0, which decides and speaks for all."""
        return self.rank == 0

    def logger(self, log: logging.Logger) -> logging.Logger:
        """``log`` on rank 0, which speaks for all; on another rank one below it, which shows errors alone."""
        if self.is_first:
            return log
        own = log.getChild("ranks")
        own.setLevel(logging.ERROR)
        return own

    def agree(self, what: str, value: Any, decide: Decide) -> Any:
        """Tell rank 0 a value and get its decision.

        Args:
            what: names the occasion in messages.
            value: of this rank, strict JSON.
            decide: called on rank 0 with the values of all ranks, in their order; its result is strict JSON.

        Returns:
            The decision, the same on every rank.

        Raises:
            ResumeError: a rank did not come in time; names it.
        """
        if self.size == 1:
            return decide([value])
        self._number += 1
        place = f"{what}/{self._number}"
        if not self.is_first:
            self._put(f"{place}/{self.rank}", value)
            decision = self._get(place, "decision", 0)
        else:
            values = [value, *(self._get(place, str(rank), rank) for rank in range(1, self.size))]
            try:
                decision = {"value": decide(values)}
            except BaseException as error:
                self._put(f"{place}/decision", {"error": f"{type(error).__name__}: {error}"})
                self.hear_out(place)
                raise
            self._put(f"{place}/decision", decision)
        self._forget_last(place)
        if "error" in decision:
            self.hear_out(place)
            raise ResumeError(f"rank 0 stopped at {what!r}: {decision['error']}")
        return decision["value"]

    def gather(self, what: str, value: Any) -> list[Any]:
        """The values of all ranks, on every rank; see `agree`."""
        found: list[Any] = self.agree(what, value, lambda values: values)
        return found

    def share(self, what: str, value: Any) -> Any:
        """The value of rank 0, on every rank; see `agree`. What the others pass is not looked at."""
        return self.agree(what, value if self.is_first else None, lambda values: values[0])

    def together(self, what: str, work: Callable[[], _T]) -> _T:
        """Do ``work``, and go on only when it has not failed on any rank; all call it alike.

        Returns:
            What it gave on this rank.

        Raises:
            Exception: what was raised on this rank; on the others an error of the same kind, if it is one of ours,
                that names the rank.
        """
        problem: Exception | None = None
        try:
            result = work()
        except Exception as error:
            problem = error
        found = self.agree(what, [type(problem).__name__, str(problem)] if problem else None, _first_failure)
        if found is not None:
            self.hear_out()
        if problem is not None:
            raise problem
        if found is not None:
            kind = getattr(errors, found[0], None)
            raise (kind if isinstance(kind, type) else ResumeError)(found[1])
        return result

    def settle(self) -> None:
        """After meetings that nothing follows for a while: rank 0 goes on when all have read its last decision.

        Raises:
            ResumeError: a rank did not come in time; names it.
        """
        if self.size == 1:
            return
        self._number += 1
        place = f"settled/{self._number}"
        if self.is_first:
            for rank in range(1, self.size):
                self._get(place, str(rank), rank)
        else:
            self._put(f"{place}/{self.rank}", None)

    def hear_out(self, place: str = "") -> None:
        """An error is about to leave every rank; the store may go with rank 0, so that stays until all know of it.

        Args:
            place: the meeting that showed it, if not the last one.
        """
        place = place or self._last
        if not self.is_first:
            with suppress(RuntimeError):
                self._put(f"{place}/heard/{self.rank}", None)
        elif self.size > 1:
            deadline_s = time.monotonic() + min(_LAST_WORD_S, self._timeout_s)
            for rank in range(1, self.size):
                with suppress(ResumeError):  # it died of something else
                    self._get(f"{place}/heard", str(rank), rank, deadline_s - time.monotonic())

    def part(self, timeout_s: float | None = None) -> None:
        """The last meeting is over. Rank 0 stays until all have read its decision: the store goes with it.

        Args:
            timeout_s: how long, if not as long as at a meeting.

        Raises:
            ResumeError: a rank did not come in time; names it.
        """
        if self.size == 1 or self._number == 0:
            return
        if timeout_s is not None:
            self._timeout_s = timeout_s
        if self.is_first:
            for rank in range(1, self.size):
                self._get("the parting/0", str(rank), rank)
        else:
            self._put(f"the parting/0/{self.rank}", None)

    def hurry(self, timeout_s: float) -> None:
        """Training has ended here, perhaps nowhere else: from now on `gives_up` after ``timeout_s`` seconds."""
        self._hurry = time.monotonic(), timeout_s

    @property
    def is_hurried(self) -> bool:
        """Whether training has ended without a meeting, so that what other ranks have done is not known."""
        return self._hurry is not None

    def gives_up(self, since_s: float, timeout_s: float) -> bool:
        """Whether a wait for other ranks is over; asked in a background thread.

        Args:
            since_s: when it began, by ``time.monotonic``.
            timeout_s: how long it may last.
        """
        now_s = time.monotonic()
        if now_s - since_s > timeout_s:
            return True
        return self._hurry is not None and now_s - max(since_s, self._hurry[0]) > self._hurry[1]

    def tell(self, what: str, message: str) -> None:
        """Leave a message for `told`; no meeting, so a background thread may do it."""
        if self.size > 1:
            self._put(f"told/{what}", f"on rank {self.rank}: {message}")

    def told(self, what: str) -> str | None:
        """What a rank has left with `tell`, if any."""
        key = f"told/{what}"
        return str(json.loads(self._store.get(key))) if self.size > 1 and self._is_there(key) else None

    def _put(self, key: str, value: Any) -> None:
        self._store.set(key, json.dumps(value, allow_nan=False))

    def _get(self, place: str, name: str, rank: int, timeout_s: float | None = None) -> Any:
        key, start, said = f"{place}/{name}", time.monotonic(), False
        timeout_s = self._timeout_s if timeout_s is None else timeout_s
        while not self._is_there(key):
            waited_s = time.monotonic() - start
            if waited_s > timeout_s:
                raise ResumeError(
                    f"rank {self.rank} waited {waited_s:.0f} s for rank {rank} at {place.rpartition('/')[0]!r}; "
                    f"look at what rank {rank} does or died of"
                )
            if waited_s > _SAY_AFTER_S and not said:
                _log.warning("rank %d has waited %.0f s for rank %d at %r", self.rank, waited_s, rank, place)
                said = True
            time.sleep(min(waited_s / 10, _PAUSE_S))
        return json.loads(self._store.get(key))

    def _is_there(self, key: str) -> bool:
        # the store's own wait cannot be interrupted, and it prints a warning each time that it ends in vain
        try:
            return bool(self._store.check([key]))
        except RuntimeError as error:
            raise ResumeError(f"rank {self.rank} has lost the store of torch.distributed: {error}") from error

    def _forget_last(self, place: str) -> None:
        """Who is at this meeting has read all of the last one, so that can go."""
        last, self._last = self._last, place
        if last:
            with suppress(RuntimeError):  # a kind of store that cannot delete
                self._store.delete_key(f"{last}/{self.rank}" if self.rank else f"{last}/decision")


def _first_failure(found: list[list[str] | None]) -> list[str] | None:
    failed = ((rank, value) for rank, value in enumerate(found) if value is not None)
    return next(([value[0], f"on rank {rank}: {value[1]}"] for rank, value in failed), None)


def refuse_lone_rank(num_ranks: int, advice: str) -> None:
    """Refuse a process that torchrun has started as one of several and that its framework trains in alone.

    Args:
        num_ranks: that train together, as the framework sees it.
        advice: how it is told of the others.

    Raises:
        ResumeError: each of them would train a copy of the run, in one directory.
    """
    started = os.environ.get("WORLD_SIZE", "1")
    if num_ranks == 1 and started != "1" and torch.distributed.is_torchelastic_launched():
        raise ResumeError(f"torchrun has started {started} processes, and each of them would train alone: {advice}")
