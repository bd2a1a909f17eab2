"""What somebody may have meant by a word that is not known."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = ["did_you_mean", "nearest"]


def nearest(word: object, known: Iterable[str]) -> str | None:
    """The known word that is spelt most like another, None where none is like it."""
    by_case = {one.lower(): one for one in reversed(list(known))}
    found = difflib.get_close_matches(str(word).lower(), by_case, 1, 0.6)
    return by_case[found[0]] if found else None


def did_you_mean(word: object, known: Iterable[str]) -> str:
    """A question to be put behind a message, with a space in front; empty where nothing is alike."""
    found = nearest(word, known)
    return "" if found is None else f" Did you mean {found!r}?"
