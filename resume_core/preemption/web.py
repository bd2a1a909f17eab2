"""HTTP with addresses of a machine's own, from the one thread that asks them; the only import of httpx.

httpx is imported when an address has taken a connection, so a machine without a metadata service does not pay for it.
Its transport is used without its client, which would write each request to the log, every few seconds. There are no
redirects, no proxies, no settings from the environment, and no connection stays open between two requests.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from resume_core.storage.redact import public_url

__all__ = ["NoAnswer", "Reply", "Web"]

_CONNECT_S = 1.0
_READ_S = 3.0
_MAX_BYTES = 1 << 16
_COMMAND = "httpx._main"
_FORK_S = 5.0  # that a fork waits for the import; it takes a fraction of a second


class NoAnswer(Exception):
    """An address did not answer, or with something else than its protocol knows."""


@dataclass(frozen=True)
class Reply:
    """What came back: status, headers by their lower-case names, and the text."""

    url: str
    status: int
    headers: Mapping[str, str]
    text: str

    def expect(self, *statuses: int) -> Reply:
        """This reply.

        Raises:
            NoAnswer: its status is another one.
        """
        if self.status not in statuses:
            raise NoAnswer(f"{public_url(self.url)} answered {self.status}")
        return self


class Web:
    """The addresses, as one thread asks them."""

    def __init__(self) -> None:
        self._reached: dict[tuple[str, int], str | None] = {}
        self._httpx: Any = None
        self._transport: Any = None

    def reach(self, url: str) -> None:
        """Learn whether anything takes connections there; asked once for all that share an address.

        Raises:
            NoAnswer: nothing does, within a second.
        """
        try:
            parts = urlsplit(url)
            place = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
        except ValueError as error:
            raise NoAnswer(f"{public_url(url)}: {error}") from error
        if place not in self._reached:
            try:
                socket.create_connection(place, timeout=_CONNECT_S).close()
                self._reached[place] = None
            except OSError as error:
                self._reached[place] = str(error)
        if (why := self._reached[place]) is not None:
            raise NoAnswer(f"{public_url(url)}: {why}")

    def ask(
        self, method: str, url: str, headers: Mapping[str, str] | None = None, *, timeout_s: float = _READ_S
    ) -> Reply:
        """One request.

        Args:
            method: ``"GET"`` or ``"PUT"``.
            url: with its query.
            headers: to send.
            timeout_s: that the answer may take, after a second for the connection.

        Raises:
            NoAnswer: no answer, or an endless one.
        """
        if self._transport is None:
            self._open()
        httpx = self._httpx
        try:
            limits = {"connect": _CONNECT_S, "read": timeout_s, "write": timeout_s, "pool": timeout_s}
            # no more than is read here may come compressed
            sent = {"accept-encoding": "identity", **(headers or {})}
            response = self._transport.handle_request(
                httpx.Request(method, url, headers=sent, extensions={"timeout": limits})
            )
            try:
                body = _read(response, time.monotonic() + timeout_s)
            finally:
                response.close()
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise NoAnswer(f"{public_url(url)}: {type(error).__name__} {error}".rstrip()) from error
        return Reply(url, response.status_code, dict(response.headers), body.decode("utf-8", "replace"))

    def close(self) -> None:
        """Nothing will be asked any more."""
        if self._transport is not None:
            self._transport.close()

    def _open(self) -> None:
        with _no_forks.held(), _without_command():
            import httpx

            self._httpx = httpx
            limits = httpx.Limits(max_keepalive_connections=0)
            self._transport = httpx.HTTPTransport(trust_env=False, limits=limits)


def _read(response: Any, end_s: float) -> bytes:
    body = b""
    for piece in response.stream:
        body += piece
        if len(body) > _MAX_BYTES or time.monotonic() > end_s:
            raise NoAnswer("the answer has no end")
    return body


@contextmanager
def _without_command() -> Iterator[None]:
    """httpx is imported without its command line. That imports rich, which draws from python's random generator: from
    this thread it would take a number out of the run's stream, at any moment, and another one after a resume."""
    taken = sys.modules.setdefault(_COMMAND, None)  # type: ignore[arg-type]
    try:
        yield
    finally:
        if taken is None:
            del sys.modules[_COMMAND]


class _NoForks:
    """No process is forked while a thread imports: in the child, that module would stay half-imported for ever, and who
    imports it there would wait for a thread that does not exist."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._mine = threading.local()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(before=self._wait, after_in_parent=self._go_on, after_in_child=self._begin_anew)

    @contextmanager
    def held(self) -> Iterator[None]:
        with self._lock:
            yield

    def _wait(self) -> None:
        # with an end: who forks may hold a lock that the import waits for
        self._mine.has_it = self._lock.acquire(timeout=_FORK_S)

    def _go_on(self) -> None:
        if self._mine.has_it:
            self._lock.release()

    def _begin_anew(self) -> None:
        self._lock = threading.Lock()


_no_forks = _NoForks()
