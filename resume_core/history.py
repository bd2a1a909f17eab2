"""What became of each attempt: when it ran, how far it came, its saves with their timings, what ended it.

Each attempt has one small file beside its checkpoints, ``history.json``, which rank 0 writes anew whenever the attempt
has become a tenth older, at most every five seconds and at least once a minute, when saves have ended, and at the end.
It is a report and no part of the state: a run whose history cannot be written trains on, and one whose history is lost
resumes as it did. An attempt that was killed says nothing at its end; what it leaves then lacks a tenth of its time,
and never more than a minute, as long as batches follow one another so fast.

Times are seconds. *Trained* is the time from the first batch on without what saves have kept training waiting.
"""

from __future__ import annotations

import atexit
import logging
import math
import os
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from datetime import datetime, timezone
from functools import partial
from platform import node
from statistics import median
from typing import Any

from resume_core.capture.provenance import mask_secrets
from resume_core.errors import Preempted, ResumeError, SupersededError
from resume_core.state import Progress
from resume_core.storage import Attempt, Store, put_history

__all__ = ["History"]

PERIOD_S = 60.0
"""Between two writes, while nothing else happens; less while the attempt is young."""

_SHORTEST_S, _OF_AGE = 5.0, 0.1

_SOON_S = 5.0  # after a save has ended: frequent saves are told of together
_MAX_SAVES = 500  # the newest, one by one; of older ones the sum
_MAX_LOSSES = 400  # points of its curve
_RECENT = 9  # saves that say what one costs now
_LAST_WORD_S = 5.0  # that the end of a run waits for its last write
_MAX_WHY = 300  # characters


class History:
    """That of one attempt. Kept on every rank, as what saves cost is asked everywhere; written by rank 0.

    Args:
        log: where it is said that it could not be written.
        asked: why the run was asked to leave, None when it was not.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        log: logging.Logger,
        asked: Callable[[], str | None] = lambda: None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._log, self._asked, self._clock = log, asked, clock
        self._start_s, self._started = clock(), _now()
        self._begun_s: float | None = None
        self._resumed: Progress | None = None
        self._progress = Progress()
        self._seen_s, self._due_s = self._start_s, self._start_s
        self._blocked_s = self._blocked_before_s = 0.0  # by all saves, and by those before the last boundary
        self._saves: dict[str, dict[str, Any]] = {}
        self._earlier = {"saves": 0, "blocked_s": 0.0}
        self._losses: list[list[Any]] = []
        self._losses_apart = 1  # steps between two of those that are kept
        self._lost_at: int | None = None  # the step since which no loss was finite
        self._lock = threading.Lock()
        self._writing: threading.Thread | None = None
        self._put: Callable[[dict[str, Any]], None] | None = None
        self._pid = 0
        self._when_left: dict[str, Any] | None = None  # what was told when a loop was left, see `close`
        self.left: str | None = None
        """Why the run leaves at a boundary, once it does."""

    # ---- what happens

    def open(self, store: Store, attempt: Attempt, resumed: Progress | None = None) -> None:
        """Write it beside what ``attempt`` saves, which stands at ``resumed``, if at anything; on rank 0 alone."""
        self._progress, self._resumed = resumed or Progress(), resumed
        self._put = partial(put_history, store, attempt.name)
        self._pid = os.getpid()
        # a script whose end nobody tells us of: one with a loop of its own, or one that an exception has ended
        atexit.register(self._at_exit)

    def begin(self, progress: Progress, *, resumed: bool) -> None:
        """Training begins, or goes on, at ``progress``."""
        self._begun_s = self._seen_s = self._clock()
        self._progress, self._resumed = progress, progress if resumed else None

    def at(self, progress: Progress) -> None:
        """Training stands at ``progress``; called at each boundary."""
        self._progress, self._blocked_before_s = progress, self._blocked_s
        self._seen_s = now_s = self._clock()
        if now_s >= self._due_s and self._put is not None:
            self._write()

    def took(self, path: str, progress: Progress, reason: str, blocked_s: float) -> None:
        """A save was taken; the rest of it comes with `note`, from whatever thread."""
        self._blocked_s += blocked_s
        facts = {"step": progress.step, "batch": progress.batch, "reason": reason, "time": _now()}
        self.note(path, **facts, trained_s=self.trained_s, blocked_s=blocked_s)

    def adopted(self, path: str, progress: Progress) -> None:
        """What an earlier attempt has left on the scratch becomes a save of this one, which has trained nothing yet."""
        facts = {"step": progress.step, "batch": progress.batch, "reason": "adopted", "time": _now()}
        self.note(path, **facts, trained_s=0.0)

    def note(self, path: str, **facts: Any) -> None:
        """More of a save: ``stage_s``, ``write_s``, ``commit_s``, ``promote_s``, ``durable_s``, ``bytes``, ``end``."""
        with self._lock:
            self._saves.setdefault(path, {"path": path}).update(facts)
            if len(self._saves) > _MAX_SAVES:
                dropped = self._saves.pop(next(iter(self._saves)))
                self._earlier["saves"] += 1
                self._earlier["blocked_s"] += dropped.get("blocked_s", 0.0)
        if "end" in facts:
            self._due_s = min(self._due_s, self._clock() + _SOON_S)

    def close(self, error: BaseException | None) -> None:
        """The run has ended; the last write is waited for, a little.

        A loop over a generator that is left says GeneratorExit, by ``break`` and by an exception alike: which one it
        was is known when the script ends, and then told.

        Args:
            error: what ended it, None when it came to its end.
        """
        if self._put is None:
            return
        left = self.left or (self._asked() if error is not None else None)
        # what a script ends with then is its own business; one of our errors says that it could not be saved
        has_left = left is not None and not isinstance(error, ResumeError)
        cause, why = ("preempted", left) if has_left else _cause(error)
        fields = self._when_left or self._fields()
        self._wait()
        self._write(fields | {"cause": cause, "why": why})
        self._wait()
        self._when_left = fields if isinstance(error, GeneratorExit) and not has_left else None
        if self._when_left is None:
            atexit.unregister(self._at_exit)
            self._put = None

    def _wait(self) -> None:
        if self._writing is not None:
            self._writing.join(_LAST_WORD_S)

    def _at_exit(self) -> None:
        if os.getpid() != self._pid:
            return
        # in a notebook it is that of any cell
        error = None if hasattr(sys, "ps1") else getattr(sys, "last_value", None)
        if error is not None or self._when_left is None:
            self.close(error or SystemExit("the script has ended"))

    def loss(self, step: int, value: float) -> None:
        """That of an optimizer step. Of a long run some hundreds are kept, and where it was lost."""
        is_finite, was_finite = math.isfinite(value), self._lost_at is None
        self._lost_at = None if is_finite else step if was_finite else self._lost_at
        if step % self._losses_apart and is_finite == was_finite:
            return
        self._losses.append([step, value if is_finite else str(value)])
        if len(self._losses) > _MAX_LOSSES:
            self._losses_apart *= 2
            stays = (self._lost_at, step)  # the newest too: what it says of the end holds until the next
            self._losses = [one for one in self._losses if one[0] % self._losses_apart == 0 or one[0] in stays]

    # ---- what is known

    @property
    def trained_s(self) -> float:
        """See the top of the module."""
        return 0.0 if self._begun_s is None else max(self._clock() - self._begun_s - self._blocked_s, 0.0)

    @property
    def blocked_s(self) -> float | None:
        """Median seconds that a save keeps training waiting; None before the first."""
        return self._median("blocked_s")

    @property
    def drain_s(self) -> float | None:
        """Median seconds from a save until the next could follow it into the directory; None before the first."""
        return self._median("promote_s") or self._median("durable_s")

    @property
    def slowest_s(self) -> float | None:
        """Of the recent saves the longest, from the boundary until it was in the directory; None before the first."""
        return max(self._recent("durable_s"), default=None)

    @property
    def overhead(self) -> tuple[float, float, int] | None:
        """Share of the time that saves on schedule have taken, seconds since the first batch, and how many there were.

        None before the first of them.
        """
        if self._begun_s is None:
            return None
        with self._lock:
            blocked = [one["blocked_s"] for one in self._saves.values() if one.get("reason") == "schedule"]
        since_s = self._clock() - self._begun_s
        return (sum(blocked) / since_s, since_s, len(blocked)) if blocked and since_s > 0 else None

    def _recent(self, name: str) -> list[float]:
        with self._lock:
            return [one[name] for one in self._saves.values() if name in one][-_RECENT:]

    def _median(self, name: str) -> float | None:
        found = self._recent(name)
        return median(found) if found else None

    # ---- the file

    def _fields(self) -> dict[str, Any]:
        resumed, at = self._resumed, self._progress
        trained_s = 0.0 if self._begun_s is None else max(self._seen_s - self._begun_s - self._blocked_before_s, 0.0)
        with self._lock:
            saves = [{name: _rounded(value) for name, value in one.items()} for one in self._saves.values()]
        return {
            "host": node(),
            "started": self._started,
            "first_batch_s": None if self._begun_s is None else _rounded(self._begun_s - self._start_s),
            "resumed": resumed and {"step": resumed.step, "batch": resumed.batch, "epoch": resumed.epoch},
            "seen": {
                "time": _now(),
                "up_s": _rounded(self._clock() - self._start_s),
                "trained_s": _rounded(trained_s),
                "step": at.step,
                "batch": at.batch,
                "epoch": at.epoch,
            },
            "cause": None,
            "why": None,
            "earlier": {name: _rounded(value) for name, value in self._earlier.items()},
            "losses": [list(point) for point in self._losses],
            "saves": saves,
        }

    def _write(self, fields: dict[str, Any] | None = None) -> None:
        """In a thread of its own, unless the last one is still at it: a slow store costs a report, no training."""
        put = self._put
        if put is None or (self._writing is not None and self._writing.is_alive()):
            return
        now_s = self._clock()
        self._due_s = now_s + min(max((now_s - self._start_s) * _OF_AGE, _SHORTEST_S), PERIOD_S)
        is_over, fields = fields is not None, fields or self._fields()
        thread = threading.Thread(target=self._run, args=(put, fields), name="exact-resume-history", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # no thread can be had: the interpreter is about to end, or the system has none left
            if is_over:  # training is over, and does not wait for this
                self._run(put, fields)
        else:
            self._writing = thread

    def _run(self, put: Callable[[dict[str, Any]], None], fields: dict[str, Any]) -> None:
        try:
            put(fields)
        except Exception as error:  # of whatever kind: the run goes on without a report
            self._log.debug("the history of this attempt was not written: %s", error)


def _cause(error: BaseException | None) -> tuple[str, str | None]:
    """A word for what ended an attempt, and a sentence."""
    if error is None:
        return "finished", None
    if isinstance(error, Preempted):
        return "preempted", None
    if isinstance(error, SupersededError):
        return "superseded", None
    if isinstance(error, (KeyboardInterrupt, GeneratorExit, SystemExit)):
        return "stopped", _line(error) if isinstance(error, SystemExit) else type(error).__name__
    return "failed", _line(error, f"{type(error).__name__}: ")


def _line(error: BaseException, before: str = "") -> str:
    """What an error says, in one line without secrets."""
    try:
        text = str(error)
    except Exception:  # a class of the user's own may do anything
        text = ""
    line = next((line for line in text.splitlines() if line.strip()), "")
    return textwrap.shorten(mask_secrets([before + line])[0], _MAX_WHY, placeholder=" ...")


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds")


def _rounded(value: Any) -> Any:
    return round(value, 6) if isinstance(value, float) else value
