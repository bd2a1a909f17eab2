"""Which attempts of a directory belong to one run."""

from __future__ import annotations

from resume_core.storage.attempt import Attempt
from resume_core.storage.lineage import Lineage

__all__ = ["relatives"]


def relatives(lineage: Lineage, attempt: str) -> set[str]:
    """Attempts that share an ancestor with ``attempt``, itself among them, which makes them the same run.

    Raises:
        OSError: the store cannot be read.
    """
    attempts = {other.name: other for other in lineage.attempts()}
    ours = _ancestry(attempts, attempt)
    return {name for name in attempts if ours & _ancestry(attempts, name)}


def _ancestry(attempts: dict[str, Attempt], name: str) -> set[str]:
    """The attempt and those it continues, each looked at once: parent and origin are mostly the same one."""
    found, todo = set[str](), [name]
    while todo:
        current = todo.pop()
        if current in found:
            continue
        found.add(current)
        attempt = attempts.get(current)
        if attempt is not None:
            origin = attempt.restored_from.attempt if attempt.restored_from else None
            todo += [older for older in (attempt.parent, origin) if older is not None]
    return found
