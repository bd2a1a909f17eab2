"""Installing exact-resume without a line of code: a Trainer asks for callbacks here whenever one is made.

Without ``EXACT_RESUME_DIR`` in the environment there are none, and nothing is imported. With it, every Trainer that
fits saves there and goes on from there. ``EXACT_RESUME_STEPS`` and ``EXACT_RESUME_MINUTES`` say how often, as in
`SaveEvery`; ``EXACT_RESUME`` means what it does anywhere.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["callbacks"]

_Number = TypeVar("_Number", int, float)


def callbacks() -> list[Any]:
    """The callback that the environment asks for.

    Raises:
        ValueError: a variable holds no number, or one that is out of range.
    """
    directory = os.environ.get("EXACT_RESUME_DIR")
    if not directory:
        return []
    from lightning_resume._installed import InstalledResumeCallback
    from resume_core.policy import SaveEvery

    steps, minutes = _number("EXACT_RESUME_STEPS", int), _number("EXACT_RESUME_MINUTES", float)
    # a rule that was given stands alone
    save = SaveEvery() if steps is None and minutes is None else SaveEvery(steps=steps, minutes=minutes)
    return [InstalledResumeCallback(directory, save=save)]


def _number(name: str, kind: Callable[[str], _Number]) -> _Number | None:
    text = os.environ.get(name)
    if not text:
        return None
    try:
        return kind(text)
    except ValueError as error:
        raise ValueError(f"the environment variable {name} must be a number, got {text!r}") from error
