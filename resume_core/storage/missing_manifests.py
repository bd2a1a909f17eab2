"""Checkpoints that were committed and have no manifest any more.

Readers take a folder without a manifest for a save that never ended. ``history.json`` knows better: it names the saves
that became durable. Whether such a folder is damage cannot always be told, since who deletes a checkpoint begins with
its manifest and may be killed before the rest. But nothing deletes the newest committed checkpoint of a line, and so
one that is newer than all others of its line has lost its manifest in another way.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

from resume_core.errors import CorruptCheckpointError
from resume_core.storage.family import relatives
from resume_core.storage.histories import is_durable, read_history
from resume_core.storage.lineage import Lineage
from resume_core.storage.manifest import CheckpointRef
from resume_core.storage.newer import by_step
from resume_core.storage.paths import HISTORY_FILE, is_checkpoint_file
from resume_core.storage.small import list_folder

__all__ = ["MissingManifest", "missing_manifests", "newest_missing"]


@dataclass(frozen=True)
class MissingManifest:
    """One such checkpoint.

    Attributes:
        ref: where it lies.
        url: of the directory.
        is_newest: whether it is newer than what is committed on its line, and so was not being deleted.
    """

    ref: CheckpointRef
    url: str
    is_newest: bool

    def __str__(self) -> str:
        said = f"{self.url}/{self.ref.attempt}/{HISTORY_FILE} says that it was committed"
        place = f"{self.url}/{self.ref.path}"
        if self.is_newest:
            return f"{place} is damaged: its manifest.json is missing; {said}."
        return f"{place} was deleted in part, or is damaged: its manifest.json is missing; {said}."


def missing_manifests(lineage: Lineage, seen: Lineage) -> list[MissingManifest]:
    """Those on the newest line of each run in a directory, newest first.

    Args:
        lineage: of the run.
        seen: a glance at it.

    Raises:
        OSError: the store cannot be read.
    """
    first = list(_on_lines(seen))
    return _confirmed(first, list(_on_lines(lineage.glance()))) if first else []


def newest_missing(lineage: Lineage, seen: Lineage) -> list[MissingManifest]:
    """Those of the newest line that are newer than all that is committed on it, newest first. Arguments likewise.

    Raises:
        OSError: the store cannot be read.
    """
    first = list(_newest(seen))
    return _confirmed(first, list(_newest(lineage.glance()))) if first else []


def _confirmed(first: list[MissingManifest], again: list[MissingManifest]) -> list[MissingManifest]:
    """What a second look finds, too: a run that goes on commits one and deletes another between two listings."""
    was_newest = {found.ref: found.is_newest for found in first}
    return [
        replace(found, is_newest=found.is_newest and was_newest[found.ref])
        for found in again
        if found.ref in was_newest
    ]


def _on_lines(view: Lineage) -> Iterator[MissingManifest]:
    covered = set[str]()
    for attempt in reversed(view.attempts()):
        if attempt.name not in covered:  # what else is of the same run is on no line, and may be on its way out
            covered |= relatives(view, attempt.name)
            yield from _on_line(view, attempt.name)


def _newest(view: Lineage) -> Iterator[MissingManifest]:
    attempt = view.newest()
    return iter(()) if attempt is None else _on_line(view, attempt.name, only_newest=True)


def _on_line(view: Lineage, attempt: str, *, only_newest: bool = False) -> Iterator[MissingManifest]:
    is_newest = True
    with suppress(CorruptCheckpointError):  # an attempt that cannot be read is told of elsewhere
        for folder, branch in view.branches(attempt):
            committed = None
            for name in sorted(view.names(folder), key=by_step, reverse=True):
                ref = CheckpointRef(folder, name)
                if branch is not None and by_step(name) > by_step(branch.name):
                    continue
                if view.tiers.committed(ref):
                    is_newest = False
                    if only_newest:
                        return
                elif not view.tiers.with_weights(ref) and _holds_files(view, ref):
                    committed = _committed(view, folder) if committed is None else committed
                    if ref.path in committed:
                        yield MissingManifest(ref, view.store.url, is_newest)


def _holds_files(view: Lineage, ref: CheckpointRef) -> bool:
    with suppress(CorruptCheckpointError):
        return any(map(is_checkpoint_file, list_folder(view.store, ref.path)))
    return False


def _committed(view: Lineage, attempt: str) -> set[str]:
    """Paths of the saves of an attempt that its history calls durable."""
    with suppress(CorruptCheckpointError):
        past = read_history(view.store, attempt)
        return set() if past is None else {str(save["path"]) for save in past.saves if is_durable(save)}
    return set()
