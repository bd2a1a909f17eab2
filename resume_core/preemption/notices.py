"""Notices of clouds, and of places of the user's choice, noted by one thread; acted on at a boundary.

The thread is a daemon: nobody waits for it. What does not answer when it begins is not asked again, and when nothing is
left it ends. What fails later is asked again at the next look.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Mapping, Sequence

from resume_core.policy import as_notices
from resume_core.preemption.notice import Notice, Source
from resume_core.preemption.places import Url, sources
from resume_core.preemption.web import NoAnswer, Web

__all__ = ["NOTICES", "NoticeWatch"]

NOTICES = "EXACT_RESUME_NOTICES"
"""Environment variable with places, commas between them, that are asked in place of those of the policy."""

_NEAR_S = 900.0  # an end that is farther ahead leaves time for more batches
_JOIN_S = 0.1


class NoticeWatch:
    """Takes note of notices between `start` and `stop`.

    Args:
        names: places, as `Preemption.notices` has them.
        log: where it is said what is watched, and what is not.
        environ: the environment.
        looks: whether this process is the one of its machine that looks.

    Raises:
        ValueError: the environment names something that is no place.
    """

    def __init__(
        self,
        names: Sequence[str],
        log: logging.Logger,
        environ: Mapping[str, str] = os.environ,
        *,
        looks: bool = True,
    ) -> None:
        given = environ.get(NOTICES)
        if given:
            is_off = given.strip().lower() in ("off", "none")
            parts = () if is_off else [part.strip() for part in given.split(",") if part.strip()]
            names = as_notices(parts, f"the environment variable {NOTICES}")
        self._sources, self._log = sources(names, environ) if looks else [], log
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._first: dict[Source, Notice | None] = {}  # what the first look found
        self._standing: dict[Source, Notice] = {}
        self._unheard: set[Source] = set()
        self._early: set[Source] = set()
        self._is_early = False
        self.at_once: Notice | None = None
        """A notice to leave at the next boundary; None before it has come."""
        self.ahead: Notice | None = None
        """A notice with an end that leaves time to train on; None when there is none."""

    @property
    def is_watching(self) -> bool:
        """Whether a notice would be noted."""
        return self._thread is not None and self._thread.is_alive()

    def start(self) -> None:
        """Begin to look, in a thread; nothing is waited for."""
        if self._sources and self._thread is None:
            self._thread = threading.Thread(target=self._run, name="exact-resume-notices", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """The thread ends, at the latest with the request that it waits for."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(_JOIN_S)

    def take_early(self) -> bool:
        """Whether something has come that is worth a save; once."""
        if not self._is_early:  # nothing is written here then: the thread may say so at this moment
            return False
        self._is_early = False
        return True

    def _run(self) -> None:
        web = Web()
        try:
            self._watch(web)
        except Exception:
            if not self._stop.is_set() and not sys.is_finalizing():
                self._log.warning("notices are not watched any more; please report this", exc_info=True)
        finally:
            web.close()

    def _watch(self, web: Web) -> None:
        due = {source: 0.0 for source in self._sources if not self._stop.is_set() and self._begins(source, web)}
        while due and self.at_once is None:
            if self._stop.wait(max(min(due.values()) - time.monotonic(), 0.0)):
                return
            source = min(due, key=lambda each: due[each])
            self._look(source, web)
            due[source] = time.monotonic() + source.every_s

    def _begins(self, source: Source, web: Web) -> bool:
        try:
            source.begin(web)
        except NoAnswer as error:
            level = logging.WARNING if source.is_chosen else logging.DEBUG
            self._log.log(level, "no notices of %s in this run: %s", source.name, error)
            return False
        self._log.info("notices are watched: %s", source.name)
        return True

    def _look(self, source: Source, web: Web) -> None:
        try:
            notice = source.look(web)
        except NoAnswer as error:
            is_news = isinstance(source, Url) and source not in self._first and source not in self._unheard
            self._unheard.add(source)
            self._log.log(logging.WARNING if is_news else logging.DEBUG, "no answer about notices: %s", error)
            return
        self._note(source, notice)

    def _note(self, source: Source, notice: Notice | None) -> None:
        stood = self._first.setdefault(source, notice) == notice
        self._standing.pop(source, None)
        if notice is not None and notice.is_early:
            if not stood and source not in self._early:
                self._early.add(source)
                self._log.warning("%s: the run is saved as soon as it can be", notice.why)
                self._is_early = True
        elif notice is not None:
            self._standing[source] = notice
            if _is_at_once(notice, stood=stood):
                self.at_once = notice
        self.ahead = min(self._standing.values(), key=lambda each: each.end_s or 0.0, default=None)


def _is_at_once(notice: Notice, *, stood: bool) -> bool:
    """Not what has stood since the start, with an end: the run was begun again on a machine that goes, and would leave
    after each batch until it has gone; nor what is hours ahead."""
    return notice.end_s is None or (not stood and notice.end_s - time.time() < _NEAR_S)
