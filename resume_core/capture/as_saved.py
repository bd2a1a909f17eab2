"""Which settings a run that goes on has as they were saved, whatever its script says now.

They are part of what a checkpoint restores: the randomness, by the run's key, and the state of optimizers and
schedulers. Functions of a schedule are in no state, so a lambda of the script's own is the current one.
"""

from __future__ import annotations

import re

__all__ = ["goes_on_as_saved"]

_RESTORED = ("seed", "optimizer", "scheduler")  # first words of names of facts
_FUNCTION = re.compile(r"(?:lambda|fn)s?\w*(?:\.|$)")


def goes_on_as_saved(name: str) -> bool:
    """Whether a change of the fact ``name`` that was accepted is not applied: the run goes on with the saved value."""
    first, _, rest = name.partition(".")
    return first in _RESTORED and not _FUNCTION.search(rest.replace("_", "."))
