"""What an object of the user's is, without asking it."""

from __future__ import annotations

from typing import Any

__all__ = ["is_a"]


def is_a(value: Any, kinds: type | tuple[type, ...]) -> bool:
    """As `isinstance`, but by the type alone.

    ``isinstance`` asks a value for its class. A proxy answers with that of another object, which it does not own, and
    with an error where that is gone (``weakref.proxy``) or not there yet, as those of web frameworks do.
    """
    return issubclass(type(value), kinds)
