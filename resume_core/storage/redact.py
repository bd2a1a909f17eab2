"""Keeping credentials out of what people read: messages, logs, and files that name where a run lies."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote

__all__ = ["Redactor", "public_url", "split_user"]

_HIDDEN = "***"
_MIN_LENGTH = 3  # shorter ones cannot be told from ordinary text
_SECRET_NAME = re.compile(r"key|secret|token|passw|credential|sas|connection_string|signature|auth|user", re.IGNORECASE)
# A secret can hold a slash that nobody quoted; an ARN is the only place of S3 that has a colon of its own.
_USER = re.compile(r"(?!arn:)([^/:@]*:[^@]*|[^/@]*)@(.*)", re.DOTALL)


def split_user(url: str) -> tuple[str, str]:
    """The part of a URL that names a user, mostly with a password, and the URL without it."""
    scheme, separator, rest = url.rpartition("://")
    match = _USER.fullmatch(rest) if separator else None
    return (match[1], f"{scheme}://{match[2]}") if match else ("", url)


def public_url(url: str) -> str:
    """A URL as people may see it: without user, password and query, which can hold a signature."""
    user, rest = split_user(url)
    return split_query(rest)[0] if user or "://" in rest else rest


def split_query(url: str) -> tuple[str, str]:
    """A URL and what follows its question mark."""
    head, _, query = url.partition("?")
    return head, query


class Redactor:
    """Replaces the credentials that one store was opened with, wherever they turn up in a text.

    Args:
        url: the URL as the user gave it.
        options: the storage options.
    """

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        user, rest = split_user(url)
        values = [user, *user.split(":"), *(pair.partition("=")[2] for pair in split_query(rest)[1].split("&"))]
        values += _secrets(options)
        values += [unquote(value) for value in values]
        # the longest first: one secret can be a part of another
        self._values = sorted({value for value in values if len(value) >= _MIN_LENGTH}, key=len, reverse=True)

    def hide(self, text: str) -> str:
        """``text`` with ``***`` in place of each credential."""
        for value in self._values:
            text = text.replace(value, _HIDDEN)
        return text

    def is_clean(self, error: BaseException | None) -> bool:
        """Whether neither ``error`` nor what it was raised from shows a credential."""
        while error is not None:
            if self.hide(f"{error} {error!r}") != f"{error} {error!r}":
                return False
            error = error.__cause__ or error.__context__
        return True


def _secrets(value: Any, is_secret: bool = False) -> Iterator[str]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _secrets(inner, is_secret or _SECRET_NAME.search(str(name)) is not None)
    elif isinstance(value, str):
        yield from [value] if is_secret else filter(None, re.split("[:]", split_user(value)[0]))
