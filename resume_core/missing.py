"""What a plugin hooks into and this version of its framework does not have."""

from __future__ import annotations

from collections.abc import Sequence

from resume_core.errors import ResumeError

__all__ = ["refuse_missing"]


def refuse_missing(missing: Sequence[str], *, version: str, plugin: str, oldest: str) -> None:
    """Refuse a framework that lacks something.

    Args:
        missing: names of what is not there.
        version: the framework's name and version.
        plugin: the package that needs it.
        oldest: version of the framework that has all of it.

    Raises:
        ResumeError: there is something missing; names all of it.
    """
    if missing:
        raise ResumeError(
            f"{version} lacks what {plugin} hooks into: {', '.join(missing)}. "
            f"It takes {oldest} or newer; with one that is newer still, a newer exact-resume may help."
        )
