"""The scratch of a run: a fast local directory in front of the run's own, checked before it is used."""

from __future__ import annotations

import errno
import logging
import os
from typing import TYPE_CHECKING, Any

from resume_core.storage import Attempt, LocalStore, Store, Tiers, open_store

if TYPE_CHECKING:
    from resume_core.ranks import Ranks  # which needs torch, and looking at a run does not

__all__ = ["admit", "open_scratch", "require_room"]

_NUM_COPIES = 2  # the newest checkpoint stays while the next is written
_MAX_SPARE_BYTES = 1 << 30


def open_scratch(scratch: str | os.PathLike[str] | None, directory: Store | None) -> Store | None:
    """The store in front of ``directory``, None for none. Nothing is created.

    Args:
        scratch: its path.
        directory: of the run; None for one that is not opened yet and is not local.

    Raises:
        ValueError: ``scratch`` is no local directory, or overlaps with the run's own.
    """
    if scratch is None:
        return None
    store = open_store(os.fspath(scratch))
    if not isinstance(store, LocalStore):
        raise ValueError(f"scratch must be a local directory in front of the run's, got {os.fspath(scratch)!r}")
    if isinstance(directory, LocalStore):
        near, far = os.path.realpath(store.url), os.path.realpath(directory.url)
        if os.path.commonpath([near, far]) in (near, far):
            raise ValueError(f"scratch and directory must lie apart, got {store.url!r} and {directory.url!r}")
    return store


def require_room(store: Store, size_bytes: int) -> None:
    """Check that a save fits, and leaves a rest for others: DataLoader workers die when /dev/shm is full.

    Raises:
        OSError: it does not, ENOSPC; or the file system cannot be asked.
    """
    if not isinstance(store, LocalStore):
        return
    free_bytes, total_bytes = store.usage()
    needed_bytes = size_bytes + min(total_bytes // 16, _MAX_SPARE_BYTES)
    if free_bytes < needed_bytes:
        message = f"{needed_bytes} bytes are needed, with a rest for others, and {free_bytes} are free"
        raise OSError(errno.ENOSPC, message, store.url)


def admit(tiers: Tiers, attempt: Attempt, size_bytes: int, ranks: Ranks, log: logging.Logger) -> Store | None:
    """Let an attempt save on the scratch, if the run has one; all ranks call it alike.

    Args:
        tiers: of the run.
        attempt: the current one, claimed.
        size_bytes: of a checkpoint of all ranks, as far as it is known.
        ranks: those that train together, each of which must see the scratch.
        log: where it is said when the run goes on without.

    Returns:
        The scratch, None when there is none or it cannot be used.
    """
    store = tiers.nearer
    if store is None:
        return None

    def open_folder(_: list[Any]) -> str:
        try:
            require_room(store, _NUM_COPIES * size_bytes)
            if not tiers.admit(store, attempt.name):
                return f"{store.locate(attempt.name)} belongs to another run"
        except OSError as error:
            return f"{type(error).__name__}: {error}"
        return ""

    problem = ranks.agree("the scratch", None, open_folder)
    sees = not problem and _holds(tiers, store, attempt)
    blind = [rank for rank, seen in enumerate(ranks.gather("the look for the scratch", sees)) if not seen]
    if not problem and blind:
        numbers = ", ".join(map(str, blind[:8]))
        problem = f"ranks {numbers} do not see what rank 0 has made there: all ranks must be on one machine"
    if problem:
        log.warning("scratch=%r is not used, saves go to %s at once: %s", store.url, tiers.directory.url, problem)
        return None
    return store


def _holds(tiers: Tiers, store: Store, attempt: Attempt) -> bool:
    try:
        return tiers.holds(store, attempt.name)
    except OSError:
        return False
