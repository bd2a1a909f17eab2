"""What every request to a remote store goes through: a deadline, and further tries when the network is to blame.

A request that moves n bytes may take ``DEADLINE_S + n / MIN_BYTES_PER_S`` seconds: a peer that never answers is given
up, a slow link is not. Each further try may take twice as long as the one before, which finds the pace of links that
are slower still. Between tries lies a pause that grows and is drawn at random, so that many ranks do not come back at
once. After ``GIVE_UP_S`` seconds no further try begins.

The deadline holds for file systems with an event loop, where a request can be cancelled: nothing of it is read or
written once it was given up. Others (memory, SFTP, SMB) keep the timeouts of their own.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from asyncio import AbstractEventLoop
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, NoReturn, TypeVar

from tenacity import AsyncRetrying, RetryCallState, Retrying, retry_if_exception, stop_after_delay
from tenacity.wait import wait_random_exponential

from resume_core.errors import ResumeError
from resume_core.storage.redact import Redactor

__all__ = ["Requests", "is_transient"]

_T = TypeVar("_T")

DEADLINE_S = 30.0
"""Seconds that a request without data may take."""

MIN_BYTES_PER_S = 256 * 1024
"""The pace, of each of several requests at once, below which a first try is given up."""

GIVE_UP_S = 120.0
"""Seconds after which a request that failed is not tried again."""

FIRST_PAUSE_S, MAX_PAUSE_S = 0.5, 15.0

_log = logging.getLogger("exact_resume")

_REFUSALS = (
    *(FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError, PermissionError),
    *(EOFError, LookupError, NotImplementedError, ResumeError, TypeError, ValueError),
)
_FINAL_CODES = frozenset({errno.EINVAL, errno.ENOSYS, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.ENAMETOOLONG})


def is_transient(error: BaseException) -> bool:
    """Whether another try may go well: whatever is no clear refusal."""
    if not isinstance(error, Exception) or isinstance(error, _REFUSALS):
        return False
    return not (isinstance(error, OSError) and error.errno in _FINAL_CODES)


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
        """Make a request in the background; see `run`. Cancelling the future ends it. For an event loop only."""
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(self._try(what, call, size_bytes), self._loop)

    async def _try(self, what: str, call: Callable[[], Awaitable[_T]], size_bytes: int) -> _T:
        deadline_s = DEADLINE_S + size_bytes / MIN_BYTES_PER_S

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
        def report(state: RetryCallState) -> None:
            assert state.outcome is not None
            assert state.next_action is not None
            text = self._message(state.outcome.exception())
            _log.warning("%s: %s; trying again in %.1f s", what, text, state.next_action.sleep)

        return {
            "retry": retry_if_exception(self._retry_if),
            "wait": wait_random_exponential(multiplier=FIRST_PAUSE_S, max=MAX_PAUSE_S),
            "stop": stop_after_delay(GIVE_UP_S),
            "before_sleep": report,
            "reraise": True,
        }

    def _raise(self, what: str, error: Exception) -> NoReturn:
        """Raise ``error`` as the kind of error it is, with the place and without credentials."""
        if isinstance(error, (EOFError, ResumeError)):
            raise error
        cause = error if self._redactor.is_clean(error) else None
        kind, code = (type(error), error.errno) if isinstance(error, OSError) else (OSError, errno.EIO)
        if kind.__module__ != "builtins":  # a library's own can need other arguments
            kind = OSError
        raise kind(code or errno.EIO, self._message(error), what) from cause

    def _message(self, error: BaseException | None) -> str:
        text = error.strerror or str(error) if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
        return self._redactor.hide(text) or type(error).__name__
