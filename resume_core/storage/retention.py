"""Deleting what is no longer needed.

What goes, always the manifest first, so that a kill in between leaves an uncommitted folder and no torn checkpoint:

- checkpoints of the current line beyond the newest ``keep.last`` sound ones;
- checkpoints of older attempts of the same run that are on no line any more (a zombie's, or those of a branch that was
  left), once the current attempt has ``keep.last`` of its own: until then a restart may want to be undone;
- uncommitted folders of older attempts, and those of our own at a lower step than our newest committed checkpoint (one
  save is in flight at a time, and it is never at a lower step).

What stays: the newest committed checkpoint, in any case; beside ``keep.last``, the newest of each kind of pinned
ones; everything of newer attempts, and everything at all once one exists, since it may stand on what we would delete;
``attempt.json``, the run's history; attempts of another run in the same directory (no common ancestor: one of them
was begun anew); attempts that cannot be read; every file whose name is not exactly one of ours, with its folder.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import suppress
from dataclasses import dataclass

from resume_core.errors import CorruptCheckpointError, ResumeError, SupersededError
from resume_core.policy import Keep
from resume_core.storage.interface import Store
from resume_core.storage.lineage import Attempt, Lineage
from resume_core.storage.manifest import CheckpointRef, Manifest
from resume_core.storage.paths import (
    ATTEMPT_FILE,
    MANIFEST_FILE,
    is_checkpoint_file,
    join_key,
    parse_checkpoint_folder,
    parse_temporary_name,
)

__all__ = ["Pruned", "prune"]


@dataclass(frozen=True)
class Pruned:
    """What a ``prune`` did.

    Args:
        deleted: checkpoint folders of which our files are gone.
        failures: one sentence for each folder that could not be cleaned; the next ``prune`` tries again.
    """

    deleted: tuple[str, ...] = ()
    failures: tuple[str, ...] = ()


_Pin = Callable[[Manifest], Hashable]


def prune(lineage: Lineage, keep: Keep, attempt: Attempt, pin: _Pin | None = None) -> Pruned:
    """Delete what ``keep`` does not keep; to be called by rank 0 after a commit, in the attempt that runs.

    Args:
        lineage: the run's attempts.
        keep: how many stay.
        attempt: the current attempt.
        pin: gives the kind of a checkpoint of which the newest stays whatever comes after it, None for one that is
            counted.

    Returns:
        What was deleted and what could not be. Nothing is raised: a failure costs space, never the run.
    """
    try:
        lineage.check_newest(attempt)
        doomed = list(_doomed(lineage, keep, attempt, pin))
    except SupersededError:
        return Pruned()
    except (OSError, CorruptCheckpointError) as error:
        return Pruned(failures=(f"nothing was pruned: {error}",))
    outcomes = {folder: _delete_folder(lineage.store, folder) for folder in doomed}
    failures = tuple(problem for problem in outcomes.values() if problem is not None)
    return Pruned(tuple(folder for folder, problem in outcomes.items() if problem is None), failures)


def _doomed(lineage: Lineage, keep: Keep, attempt: Attempt, pin: _Pin | None) -> Iterator[str]:
    own = lineage.checkpoints(attempt.name)
    line, is_whole = _line(lineage, attempt)
    expired = _expired(line, keep.last, lambda ref: pin and pin(lineage.read_manifest(ref)))
    yield from (ref.path for ref in reversed(expired))
    on_line = {ref.path for ref in line}
    # A line that could not be read to its end may go on in any of the older attempts.
    settled = is_whole and sum(ref.serial is not None for ref in own) >= keep.last
    relatives = _relatives(lineage, attempt) if settled else set()
    for older in lineage.attempts():
        if (older.number, older.token) < (attempt.number, attempt.token):
            committed = {ref.path for ref in lineage.checkpoints(older.name)}
            yield from _uncommitted(lineage.store, older.name)
            if older.name in relatives:
                yield from sorted(committed - on_line)
    yield from _own_leftovers(lineage.store, attempt.name, own)


def _line(lineage: Lineage, attempt: Attempt) -> tuple[list[CheckpointRef], bool]:
    """The current line as far as it can be read, and whether that was to its end."""
    refs: list[CheckpointRef] = []
    try:
        for ref in lineage.line(attempt.name):
            refs.append(ref)  # noqa: PERF402  what came before an exception must stay
    except ResumeError:
        return refs, False
    return refs, True


def _expired(
    line: list[CheckpointRef], num_kept: int, kind: Callable[[CheckpointRef], Hashable]
) -> list[CheckpointRef]:
    """What lies beyond the newest ``num_kept`` sound checkpoints; damaged ones between those are left as they are."""
    expired: list[CheckpointRef] = []
    num_counted, pinned = 0, set[Hashable]()
    for ref in line:
        pin = None if ref.serial is None else kind(ref)
        if pin is not None and pin not in pinned:
            pinned.add(pin)
        elif num_counted >= num_kept:
            expired.append(ref)
        elif ref.serial is not None and pin is None:
            num_counted += 1
    return expired


def _relatives(lineage: Lineage, attempt: Attempt) -> set[str]:
    """Attempts that share an ancestor with ours, which makes them the same run."""
    attempts = {other.name: other for other in lineage.attempts()}
    ours = _ancestry(attempts, attempt.name)
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


def _uncommitted(store: Store, attempt: str) -> Iterator[str]:
    for name in store.list(attempt):
        folder = join_key(attempt, name)
        is_ours = parse_checkpoint_folder(name) is not None and any(map(is_checkpoint_file, store.list(folder)))
        if is_ours and not store.exists(join_key(folder, MANIFEST_FILE)):
            yield folder
        if parse_temporary_name(name) == ATTEMPT_FILE:
            with suppress(OSError):  # a few bytes of a claim that was killed: not worth a report
                store.delete(folder)


def _own_leftovers(store: Store, attempt: str, own: list[CheckpointRef]) -> Iterator[str]:
    newest_step = max((_step(ref.name) for ref in own), default=-1)
    for folder in _uncommitted(store, attempt):
        if _step(folder.rsplit("/", 1)[1]) < newest_step:
            yield folder


def _step(name: str) -> int:
    place = parse_checkpoint_folder(name)
    return place[0] if place is not None else -1


def _delete_folder(store: Store, folder: str) -> str | None:
    """Delete our files in a checkpoint's folder, the manifest first, and nothing else if that fails.

    Returns:
        What went wrong, None if nothing did.
    """
    try:
        store.delete(join_key(folder, MANIFEST_FILE))
        for name in store.list(folder):
            if is_checkpoint_file(name):
                store.delete(join_key(folder, name))
        store.delete_empty(folder)
    except OSError as error:
        return f"{store.locate(folder)} could not be deleted: {error}"
    return None
