"""What every request to a remote store goes through: a deadline, and further tries when the network is to blame.

`Patience` has the numbers. A request may take so long as its bytes need on a slow link: a peer that never answers is
given up, a slow link is not. Each further try may take twice as long as the one before, which finds the pace of links
that are slower still. Between tries lies a pause that grows and is drawn at random, so that many ranks do not come back
at once. The log says at the first failure for how long it will be tried, and then now and then that it still is.

The deadline holds for file systems with an event loop, where a request can be cancelled: nothing of it is read or
written once it was given up. Others (memory, SFTP, SMB) keep the timeouts of their own.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import math
import os
import socket
import threading
import time
from asyncio import AbstractEventLoop
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from random import SystemRandom
from typing import Any, NoReturn, TypeVar

from tenacity import AsyncRetrying, RetryCallState, Retrying

from resume_core.errors import ResumeError
from resume_core.storage.redact import Redactor

__all__ = ["Patience", "Requests", "is_transient"]

_T = TypeVar("_T")


@dataclass(frozen=True)
class Patience:
    """How long a store waits.

    Attributes:
        deadline_s: seconds that a request without data may take.
        min_bytes_per_s: the pace, of each of several requests at once, below which a first try is given up.
        give_up_s: seconds after which a request that failed is not tried again.
        unreached_s: the same as long as nothing was ever reached there (a connection that is refused, a host that
            nobody knows): an outage passes, an address that was misspelt does not.
        first_pause_s: the most that lies between the first two tries; then twice as much each time...
        max_pause_s: ...up to this.
    """

    deadline_s: float = 30.0
    min_bytes_per_s: float = 256 * 1024
    give_up_s: float = 120.0
    unreached_s: float = 120.0
    first_pause_s: float = 0.5
    max_pause_s: float = 15.0

    def pause_s(self, num_tries: int) -> float:
        """Seconds to wait after the last of ``num_tries``."""
        return _chance.uniform(0, min(self.max_pause_s, self.first_pause_s * 2.0 ** min(num_tries - 1, 30)))


PATIENCE = Patience()
"""That of every store."""

_SOON_S = 3.0  # for somebody who waits: two or three tries
_APART_S = 30.0  # between two lines in the log

# not `random` itself, as tenacity's own pauses: a retry would change what the training script draws from it
_chance = SystemRandom()
_log = logging.getLogger("exact_resume")

_REFUSALS = (
    *(FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError, PermissionError),
    *(EOFError, LookupError, NotImplementedError, ResumeError, TypeError, ValueError),
)
_UNREACHED = frozenset({errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.ENETUNREACH})
_FINAL_CODES = frozenset({errno.EINVAL, errno.ENOSYS, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.ENAMETOOLONG})


def is_transient(error: BaseException) -> bool:
    """Whether another try may go well: whatever is no clear refusal."""
    if not isinstance(error, Exception) or isinstance(error, _REFUSALS):
        return False
    return not (isinstance(error, OSError) and error.errno in _FINAL_CODES)


def _is_unreached(error: BaseException | None) -> bool:
    """Whether nothing answers at that address at all, as far as the error tells."""
    while error is not None:
        is_known = isinstance(error, OSError) and error.errno in _UNREACHED
        if is_known or isinstance(error, (ConnectionRefusedError, socket.gaierror)):
            return True
        error = error.__cause__ or error.__context__
    return False


class Requests:
    """Makes the requests of one store. Called from several threads.

    Args:
        loop: the event loop of an asynchronous file system, else None.
        redactor: keeps credentials out of errors and log.
        retry_if: tells which errors are worth another try.
    """

    def __init__(
        self,
        loop: AbstractEventLoop | None,
        redactor: Redactor,
        retry_if: Callable[[BaseException], bool] = is_transient,
    ) -> None:
        self._loop, self._redactor, self._retry_if = loop, redactor, retry_if
        self._pid = os.getpid()
        self.patience = PATIENCE
        self._was_reached = False
        self._said_s = -math.inf
        self._saying = threading.Lock()

    def hurry(self) -> None:
        """Somebody waits for an answer: give up soon where nothing was ever reached."""
        self.patience = replace(self.patience, unreached_s=min(_SOON_S, self.patience.unreached_s))

    def run(self, what: str, call: Callable[[], Any], size_bytes: int = 0) -> Any:
        """Make a request and wait for it.

        Args:
            what: the place it is about, for messages.
            call: makes it once; gives an awaitable where there is an event loop, else the result.
            size_bytes: how much it moves.

        Raises:
            OSError: the last try failed. Keeps the type of the error where that is an ``OSError``.
            EOFError: from ``call``.
            ResumeError: from ``call``.
        """
        if self._loop is not None:
            return self.start(what, call, size_bytes).result()
        with self.explained(what):
            return Retrying(**self._policy(what))(call)

    @contextmanager
    def explained(self, what: str) -> Iterator[None]:
        """Let errors out as `run` does."""
        try:
            yield
        except Exception as error:
            self._raise(what, error)

    def start(self, what: str, call: Callable[[], Awaitable[_T]], size_bytes: int = 0) -> Future[_T]:
        """Make a request in the background; see `run`. Cancelling the future ends it. For an event loop only.

        Raises:
            RuntimeError: the process was forked off after the store was opened.
        """
        assert self._loop is not None
        if os.getpid() != self._pid:
            raise RuntimeError(f"{what}: this process was forked off, and the event loop was not: open the store again")
        return asyncio.run_coroutine_threadsafe(self._try(what, call, size_bytes), self._loop)

    async def _try(self, what: str, call: Callable[[], Awaitable[_T]], size_bytes: int) -> _T:
        deadline_s = self.patience.deadline_s + size_bytes / self.patience.min_bytes_per_s

        async def once() -> _T:
            nonlocal deadline_s
            allowed_s, deadline_s = deadline_s, 2 * deadline_s
            try:
                return await asyncio.wait_for(call(), allowed_s)
            except asyncio.TimeoutError as error:
                text = f"no answer in time ({allowed_s:.0f} s at the most)"
                raise TimeoutError(errno.ETIMEDOUT, text) from error

        with self.explained(what):
            return await AsyncRetrying(**self._policy(what))(once)

    def _policy(self, what: str) -> dict[str, Any]:
        # elsewhere than in the main thread Ctrl-C ends nothing that is waited for
        can_stop = threading.current_thread() is threading.main_thread()
        return {
            "retry": self._is_worth_it,
            "wait": lambda state: self.patience.pause_s(state.attempt_number),
            "stop": lambda state: state.seconds_since_start >= self._limit_s,
            "before_sleep": partial(self._report, what, can_stop=can_stop),
            "reraise": True,
        }

    def _is_worth_it(self, state: RetryCallState) -> bool:
        assert state.outcome is not None
        error = state.outcome.exception()
        self._was_reached = self._was_reached or not _is_unreached(error)
        return error is not None and self._retry_if(error)

    @property
    def _limit_s(self) -> float:
        """Seconds from its first try on after which a request is given up."""
        return self.patience.give_up_s if self._was_reached else self.patience.unreached_s

    def _report(self, what: str, state: RetryCallState, *, can_stop: bool) -> None:
        """Say that there will be another try: the first time all of it, later in short and now and then."""
        assert state.outcome is not None
        assert state.seconds_since_start is not None
        now_s, gone_s, limit_s = time.monotonic(), state.seconds_since_start, self._limit_s
        with self._saying:
            is_silent = now_s - self._said_s < _APART_S
            if not is_silent:
                self._said_s = now_s
        text = self._message(state.outcome.exception())
        if is_silent:
            _log.debug("%s: %s; trying again", what, text)
        elif gone_s < _APART_S:
            stop = " (Ctrl-C stops)" if can_stop else ""
            _log.warning("%s: %s; trying again for up to %.0f s%s", what, text, limit_s, stop)
        else:
            left_s = max(limit_s - gone_s, 0.0)
            _log.warning("%s: no success for %.0f s; trying again for up to %.0f s", what, gone_s, left_s)

    def _raise(self, what: str, error: Exception) -> NoReturn:
        """Raise ``error`` as the kind of error it is, with the place and without credentials."""
        if isinstance(error, (EOFError, ResumeError)):
            raise error
        cause = error if self._redactor.is_clean(error) else None
        kind, code = (type(error), error.errno) if isinstance(error, OSError) else (OSError, errno.EIO)
        if kind.__module__ != "builtins":  # a library's own can need other arguments
            kind = OSError
        # the place is part of the text: asyncio makes timeouts anew on their way here and loses a file name
        raise kind(code or errno.EIO, f"{what}: {self._message(error)}") from cause

    def _message(self, error: BaseException | None) -> str:
        text = error.strerror or str(error) if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
        return self._redactor.hide(text) or type(error).__name__
