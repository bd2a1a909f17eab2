"""The claim of an attempt, one for all ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from resume_core.errors import ResumeError
from resume_core.ranks import Ranks
from resume_core.storage import Attempt, CheckpointRef, Lineage

__all__ = ["claim", "is_of_this_process"]

_claimed: set[tuple[str, str]] = set()
"""Directory and folder of the attempts of this process."""


def is_of_this_process(url: str, attempt: str) -> bool:
    """Whether an attempt was claimed by this very process: what it has saved is of no run that was interrupted."""
    return (url, attempt) in _claimed


def claim(
    lineage: Lineage, ranks: Ranks, *, origin: CheckpointRef | None, info: Mapping[str, Any], anew: bool
) -> Attempt:
    """Claim the next attempt; rank 0 does, and all must see it.

    Args:
        lineage: of the run.
        ranks: those that train together; each calls this alike.
        origin: the checkpoint it goes on from.
        info: strict JSON to keep with the attempt.
        anew: the user begins a new run in the same directory.

    Raises:
        ResumeError: a rank does not see what rank 0 has made.
        OSError: the store cannot be written.
    """

    def make(_: list[Any]) -> str:
        # an attempt that found nothing to restore still belongs to the run, so that its leftovers are pruned
        newest = None if anew or origin is not None else lineage.newest()
        parent = newest.name if newest else None
        return lineage.claim(parent=parent, restored_from=origin, info=info).name

    name = ranks.agree("the claim", None, make)
    attempt = lineage.attempt(name)
    if not all(ranks.gather("the look for the claim", attempt is not None)) or attempt is None:
        ranks.hear_out()
        url = lineage.store.url
        raise ResumeError(
            f"rank 0 has made {name} in {url} and not all ranks see it: the directory must be one that all machines "
            "share",
            path=url,
        )
    _claimed.add((lineage.store.url, name))
    return attempt
