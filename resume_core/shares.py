"""One save brought to one store by all ranks: each writes its share, rank 0 commits when all are there."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from resume_core.errors import ResumeError, SaveFailedError, SupersededError
from resume_core.ranks import Ranks
from resume_core.storage import CheckpointRef, CheckpointWriter, Manifest, Slot, Store, Tiers

__all__ = ["await_commit", "bring"]

_LOOK_S = 0.05  # between two looks for the parts of other ranks

PARTS_S = 1800.0
"""Seconds that rank 0 waits for the parts of the other ranks: their disks may be slower, or shared."""


def bring(
    store: Store,
    slot: Slot,
    ranks: Ranks,
    *,
    write: Callable[[CheckpointWriter], None],
    header: Callable[[], Mapping[str, Any]],
    still_newest: Callable[[], object],
) -> Manifest | None:
    """Write this rank's share, and on rank 0 commit; in the background. What was written is removed when it fails.

    Args:
        store: where to.
        slot: the place, the same on all ranks.
        ranks: those whose shares make the checkpoint.
        write: writes this rank's files.
        header: asked on rank 0 when all parts are there: what the manifest will say.
        still_newest: see `CheckpointWriter.commit`.

    Returns:
        The manifest on rank 0, None on the others.

    Raises:
        SupersededError: a newer attempt has started; nothing was committed.
        SaveFailedError: see `CheckpointWriter.commit`, or the part of a rank did not come.
        OSError: the store refused.
    """
    writer = CheckpointWriter(store, slot, ranks.rank, ranks.size)
    place = store.locate(slot.path)  # a save that one tier refused is brought to the next under the same name
    try:
        write(writer)
        writer.write_part()
        if not ranks.is_first:
            return None
        _await_parts(writer, ranks, place)
        return writer.commit(header(), still_newest=still_newest)
    except BaseException as error:
        newer, first = _superseded(still_newest), ranks.told(place)
        if first is None:
            ranks.tell(place, f"{type(newer or error).__name__}: {newer or error}")
        writer.discard()
        if newer is not None:
            raise newer from error
        if first is not None and isinstance(error, OSError):  # what failed first takes the folder away from the others
            raise SaveFailedError(f"{place} was not committed: {first}", path=place) from error
        raise


def await_commit(tiers: Tiers, ref: CheckpointRef, ranks: Ranks) -> None:
    """Without a meeting a rank may be here before rank 0 has committed: wait for that, or give up."""
    start = time.monotonic()
    while ranks.is_hurried and not tiers.committed(ref) and not ranks.gives_up(start, PARTS_S):
        time.sleep(_LOOK_S)


def _superseded(still_newest: Callable[[], object]) -> SupersededError | None:
    """A newer attempt cleans up after this one, which then fails in odd ways: that it exists explains them all."""
    try:
        still_newest()
    except SupersededError as error:
        return error
    except (OSError, ResumeError):
        return None
    return None


def _await_parts(writer: CheckpointWriter, ranks: Ranks, place: str) -> None:
    start = time.monotonic()
    while missing := writer.missing_ranks():
        waited_s = time.monotonic() - start
        problem = ranks.told(place)
        if problem is None and ranks.gives_up(start, PARTS_S):
            problem = f"waited {waited_s:.0f} s for ranks {', '.join(map(str, missing[:8]))}"
        if problem is not None:
            raise SaveFailedError(f"{place} was not committed: {problem}", path=place)
        time.sleep(min(_LOOK_S + waited_s / 10, 20 * _LOOK_S))
