"""Deleting what is no longer needed, on one tier at a time.

What goes, always the manifest first, so that a kill in between leaves an uncommitted folder and no torn checkpoint:

- checkpoints of the current line that `Keep` does not keep on this tier (see ``keeping``);
- of those that it keeps without their training state, everything but the weights;
- checkpoints of older attempts of the same run that are on no line any more (a zombie's, or those of a branch that was
  left), once the current attempt has ``keep.last`` of its own: until then a restart may want to be undone;
- what is left of a claim that was cut short, once a later number is claimed;
- uncommitted folders of older attempts, and those of our own at a lower step than our newest committed checkpoint (one
  save is brought to a tier at a time, and it is never at a lower step than what is committed there).

What stays: the newest committed checkpoint, in any case; the newest of each kind of pinned ones; everything of newer
attempts, and everything at all once one exists, since it may stand on what we would delete; ``attempt.json`` and
``history.json``; attempts of another run in the same directory (no common ancestor: one of them was begun anew);
attempts that cannot be read; every file whose name is not exactly one of ours, with its folder.

**Thinning.** ``weights.json``, a manifest of the weights alone, is written beside the whole checkpoint; then the
manifest goes, and the checkpoint with it; then the other files. A kill before the manifest goes leaves a whole
checkpoint, and one after it leaves weights, with files beside them that the next ``prune`` deletes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from types import MappingProxyType

from resume_core.errors import CorruptCheckpointError, ResumeError, SupersededError
from resume_core.policy import Keep
from resume_core.storage.attempt import Attempt
from resume_core.storage.brief import Brief
from resume_core.storage.family import relatives
from resume_core.storage.interface import Store
from resume_core.storage.keeping import Entry, judge
from resume_core.storage.lineage import Lineage
from resume_core.storage.manifest import CheckpointRef
from resume_core.storage.manifests import read_manifest
from resume_core.storage.newer import before
from resume_core.storage.paths import (
    ATTEMPT_FILE,
    MANIFEST_FILE,
    MODEL_FILE,
    WEIGHTS_FILE,
    is_checkpoint_file,
    is_data_file,
    is_report,
    join_key,
    parse_attempt_folder,
    parse_checkpoint_folder,
    parse_temporary_name,
)
from resume_core.storage.small import is_there, list_folder

__all__ = [
    "Outlook",
    "Pruned",
    "Removal",
    "clean",
    "kept_aside",
    "line_entries",
    "off_line",
    "outlook",
    "prune",
    "remove",
    "remove_aside",
]


@dataclass(frozen=True)
class Pruned:
    """What a ``prune`` or a ``clean`` did.

    Args:
        deleted: checkpoint folders of which our files are gone.
        failures: one sentence for each folder that could not be cleaned; the next ``prune`` tries again.
        thinned: checkpoints of which only the weights are left now.
    """

    deleted: tuple[str, ...] = ()
    failures: tuple[str, ...] = ()
    thinned: tuple[str, ...] = ()


@dataclass(frozen=True)
class Removal:
    """What goes of one checkpoint folder.

    Attributes:
        folder: below the store.
        why: a few words.
        thinned: the checkpoint in it of which the weights stay; None where all of it goes.
        is_whole: whether something is committed there; otherwise it may be a save in flight.
    """

    folder: str
    why: str
    thinned: CheckpointRef | None = None
    is_whole: bool = True


@dataclass(frozen=True)
class Outlook:
    """What a ``prune`` would do.

    Attributes:
        line: the checkpoints that `Keep` was asked about, newest first.
        removals: what goes, in the order in which it goes.
        odd: one sentence for each thing that stays because it cannot be understood.
        is_whole: whether the line could be read to its end.
    """

    line: tuple[Entry, ...]
    removals: tuple[Removal, ...]
    odd: tuple[str, ...]
    is_whole: bool = True


_Pin = Callable[[Brief], Hashable]
_NO_RULE, _THINNED, _NO_LINE = "no rule keeps it", "its weights stay", "on no line any more"
_HALF = "half-written"


def prune(
    lineage: Lineage,
    keep: Keep,
    attempt: Attempt,
    pin: _Pin | None = None,
    *,
    store: Store | None = None,
    spare: Callable[[], Collection[str]] = tuple,
) -> Pruned:
    """Delete what ``keep`` does not keep on one tier; to be called by rank 0 after a commit there.

    Args:
        lineage: the run's attempts.
        keep: how many stay on this tier.
        attempt: the current attempt.
        pin: gives the kind of a checkpoint of which the newest stays whatever comes after it, None for one that is
            counted.
        store: the tier; the run's directory unless given.
        spare: gives the folders that are being read at this moment; asked before each deletion.

    Returns:
        What was deleted and what could not be. Nothing is raised: a failure costs space, never the run.
    """
    store = store or lineage.store
    try:
        seen = outlook(lineage.glance(store), keep, attempt, pin)
    except SupersededError:
        return Pruned()
    except (OSError, CorruptCheckpointError) as error:
        return Pruned(failures=(f"nothing was pruned: {error}",))
    pruned = remove(store, seen.removals, spare)
    return replace(pruned, failures=(*seen.odd, *pruned.failures))


def outlook(
    view: Lineage,
    keep: Keep,
    attempt: Attempt,
    pin: _Pin | None = None,
    *,
    damaged: Mapping[str, str] = MappingProxyType({}),
) -> Outlook:
    """What `prune` would delete on the one tier of ``view``, a glance at the run; nothing is deleted.

    Args:
        view: a glance at the run, on one tier.
        keep: see `prune`.
        attempt: see `prune`.
        pin: see `prune`.
        damaged: paths of checkpoints that are known to be, each with what is wrong: they stay, and are not counted.

    Raises:
        SupersededError: a newer attempt than ``attempt`` was claimed.
        CorruptCheckpointError: the tier cannot be understood.
        OSError: it cannot be read.
    """
    view.check_newest(attempt)
    odd = list[str]()
    line, is_whole = line_entries(view, attempt, pin)
    line = [replace(entry, problem=damaged.get(entry.ref.path, entry.problem)) for entry in line]
    removals = tuple(_removals(view, keep, attempt, line, odd, is_whole=is_whole))
    return Outlook(tuple(line), removals, tuple(odd), is_whole)


def off_line(view: Lineage, seen: Outlook, keep: Keep, attempt: Attempt) -> list[tuple[str, str]]:
    """The checkpoints that are on no line and stay all the same, newest attempt first, each with the reason.

    Args:
        view: a glance at the run, on one tier.
        seen: what `outlook` has found there.
        keep: that it was asked with.
        attempt: likewise.

    Raises:
        OSError: the tier cannot be read.
    """
    known = {entry.ref.path for entry in seen.line} | {removal.folder for removal in seen.removals}
    related, found = relatives(view, attempt.name), list[tuple[str, str]]()
    for older in reversed(_older(view, attempt)):
        why = f"it goes once {attempt.name} has {keep.last} of its own"
        if older not in related:
            why = f"of another run: {attempt.name} did not go on from it, nor from what came before it"
        elif not seen.is_whole:
            why = "the line cannot be read to its end, and it may be on it"
        found += [(folder, why) for folder in sorted(_committed(view, older), reverse=True) if folder not in known]
    return found


def clean(lineage: Lineage, attempt: Attempt) -> Pruned:
    """Delete, on every tier, what older attempts left half-written; to be called by rank 0 after the claim.

    Unfinished uploads are dropped, too, and on nearer tiers the folders of attempts that have nothing left there.

    Args:
        lineage: the run's attempts and its tiers.
        attempt: the current attempt. What it writes itself, and what newer ones do, is left alone.

    Returns:
        As for `prune`.
    """
    found = [_clean_tier(lineage.glance(store), store, attempt) for store in lineage.tiers.stores]
    deleted = tuple(folder for pruned in found for folder in pruned.deleted)
    return Pruned(deleted, tuple(problem for pruned in found for problem in pruned.failures))


def _clean_tier(view: Lineage, store: Store, attempt: Attempt) -> Pruned:
    (seen,) = view.tiers.stores
    try:
        view.check_newest(attempt)
        older = _older(view, attempt)
        left = remove(store, [removal for name in older for removal in _uncommitted(seen, name)])
        for name in _cut_short(view, seen, attempt):
            _delete_temporaries(seen, store, name)
            store.delete_empty(name)
        for name in older:
            _delete_temporaries(seen, store, name)
            if seen is not view.store and _names(store, name) == [ATTEMPT_FILE]:
                store.delete(join_key(name, ATTEMPT_FILE))
                store.delete_empty(name)
        store.abandon_uploads(older)
    except SupersededError:
        return Pruned()
    except OSError as error:
        return Pruned(failures=(f"what earlier attempts left in {store.url} was not cleaned: {error}",))
    return left


def _cut_short(view: Lineage, seen: Store, attempt: Attempt) -> Iterator[str]:
    """Folders of older numbers that hold the beginning of an ``attempt.json`` and nothing else: a kill in the claim."""
    for name in view.store.list(""):
        place = parse_attempt_folder(name)
        if place is not None and place[0] < attempt.number:
            found = {parse_temporary_name(file) for file in _names(seen, name)}
            if found == {ATTEMPT_FILE}:
                yield name


def _delete_temporaries(seen: Store, store: Store, attempt: str) -> None:
    """Those that a kill has left beside whole files."""
    for name in _names(seen, attempt):
        folder = join_key(attempt, name)
        if parse_checkpoint_folder(name) is not None:
            for file in _names(seen, folder):
                if parse_temporary_name(file) is not None and is_checkpoint_file(file):
                    store.delete(join_key(folder, file))
        elif (final := parse_temporary_name(name)) is not None and _is_beside(final):
            store.delete(folder)


def _is_beside(name: str) -> bool:
    """Whether it is written beside the checkpoints of an attempt, or kept there to be written over."""
    return name == ATTEMPT_FILE or is_report(name) or is_data_file(name)


def kept_aside(store: Store, attempt: str) -> list[str]:
    """Keys of the files that an attempt has moved aside to write over them; one that was killed has left them."""
    names = [name for name in _names(store, attempt) if is_data_file(parse_temporary_name(name) or "")]
    return [join_key(attempt, name) for name in names]


def remove_aside(store: Store, key: str) -> Pruned:
    """Delete what `kept_aside` has found. It costs a run that still has a use for it time, and nothing else."""
    try:
        store.delete(key)
    except OSError as error:
        return Pruned(failures=(f"{store.locate(key)} could not be deleted: {error}",))
    return Pruned((key,))


def remove(store: Store, removals: Iterable[Removal], spare: Callable[[], Collection[str]] = tuple) -> Pruned:
    """Do what `outlook` has found.

    Args:
        store: the tier.
        removals: what goes.
        spare: see `prune`.

    Returns:
        As for `prune`.
    """
    deleted, thinned, failures = list[str](), list[str](), list[str]()
    for removal in removals:
        folder, ref = removal.folder, removal.thinned
        if folder in spare():
            continue
        problem = _delete_folder(store, folder) if ref is None else _thin(store, ref, thinned)
        if problem is not None:
            failures.append(problem)
        elif ref is None:
            deleted.append(folder)
    return Pruned(tuple(deleted), tuple(failures), tuple(thinned))


def _removals(
    view: Lineage, keep: Keep, attempt: Attempt, line: list[Entry], odd: list[str], *, is_whole: bool
) -> Iterator[Removal]:
    odd += [f"{entry.ref.path} stays: {entry.problem}" for entry in line if entry.problem]
    for entry, verdict in reversed(list(zip(line, judge(line, keep), strict=True))):
        if verdict == "thin":
            yield Removal(entry.ref.path, _THINNED, entry.ref)
        elif verdict == "delete":
            yield Removal(entry.ref.path, _NO_RULE)
    on_line = {entry.ref.path for entry in line}
    # A line that could not be read to its end may go on in any of the older attempts.
    own = [entry for entry in line if entry.ref.attempt == attempt.name and entry.is_whole]
    settled = is_whole and sum(entry.is_sound for entry in own) >= keep.last
    related = relatives(view, attempt.name) if settled else set()
    (store,) = view.tiers.stores
    older_ones = _older(view, attempt)
    odd += [str(error) for folder in (*older_ones, attempt.name) for error in view.lost(folder)]
    for older in older_ones:
        yield from _uncommitted(store, older)
        if older in related:
            committed = set(_committed(view, older))
            yield from (Removal(folder, _NO_LINE) for folder in sorted(committed - on_line))
    yield from _own_leftovers(store, attempt.name, [entry.ref for entry in own])


def _older(view: Lineage, attempt: Attempt) -> list[str]:
    """Attempts older than ours of which the tier holds something, oldest first."""
    (store,) = view.tiers.stores
    for name in store.list(""):
        if parse_attempt_folder(name) is not None:
            _names(store, name)  # needed anyhow, and listed first, an attempt.json that was read before is known again
    names = [other.name for other in view.attempts() if (other.number, other.token) < (attempt.number, attempt.token)]
    return [name for name in names if view.tiers.holds(store, name)]


def line_entries(view: Lineage, attempt: Attempt, pin: _Pin | None = None) -> tuple[list[Entry], bool]:
    """The line of an attempt as far as it can be read, newest first, and whether that was to its end."""
    line: list[Entry] = []
    is_whole = True
    try:
        for folder, branch in view.branches(attempt.name):
            found = {ref: _entry(ref, brief, pin) for ref, brief in view.briefs(folder).items()}
            found |= {ref: _left(ref, left) for ref, left in view.weights(folder)}
            line += [found[ref] for ref in before(list(found), branch)]
            is_whole = is_whole and not view.lost(folder)
    except ResumeError:
        return line, False
    return line, is_whole


def _left(ref: CheckpointRef, found: Brief | CorruptCheckpointError) -> Entry:
    """The entry of a checkpoint that was thinned."""
    return Entry(ref, found.header, is_whole=False) if isinstance(found, Brief) else Entry(ref, problem=str(found))


def _entry(ref: CheckpointRef, brief: Brief | None, pin: _Pin | None) -> Entry:
    if brief is None:
        return Entry(ref)
    try:
        return Entry(ref, brief.header, pin=pin and pin(brief))
    except CorruptCheckpointError as error:
        return Entry(ref, brief.header, problem=str(error))


def _committed(view: Lineage, attempt: str) -> Iterator[str]:
    """Folders of the checkpoints of an attempt, whole or thinned, on the one tier."""
    for ref in (CheckpointRef(attempt, name) for name in view.names(attempt)):
        if view.tiers.committed(ref) or view.tiers.with_weights(ref):
            yield ref.path


def _uncommitted(store: Store, attempt: str) -> Iterator[Removal]:
    for name in _names(store, attempt):
        folder = join_key(attempt, name)
        if parse_checkpoint_folder(name) is None or _is_committed(store, folder):
            continue
        if any(map(is_checkpoint_file, _names(store, folder))):
            yield Removal(folder, _HALF, is_whole=False)


def _is_committed(store: Store, folder: str) -> bool:
    return any(is_there(store, join_key(folder, file)) for file in (MANIFEST_FILE, WEIGHTS_FILE))


def _names(store: Store, folder: str) -> list[str]:
    """What is in a folder; nothing where the disk has lost it, so that the rest of the tier is looked after."""
    with suppress(CorruptCheckpointError):
        return list_folder(store, folder)
    return []


def _own_leftovers(store: Store, attempt: str, own: list[CheckpointRef]) -> Iterator[Removal]:
    newest_step = max((_step(ref.name) for ref in own), default=-1)
    for removal in _uncommitted(store, attempt):
        if _step(removal.folder.rsplit("/", 1)[1]) < newest_step:
            yield removal


def _step(name: str) -> int:
    place = parse_checkpoint_folder(name)
    return place[0] if place is not None else -1


def _delete_folder(store: Store, folder: str) -> str | None:
    """Delete our files in a checkpoint's folder, what makes it count first, and nothing else if that fails.

    Returns:
        What went wrong, None if nothing did.
    """
    try:
        store.delete(join_key(folder, MANIFEST_FILE))
        names = [name for name in store.list(folder) if is_checkpoint_file(name)]
        for name in sorted(names, key=lambda name: name != WEIGHTS_FILE):
            store.recycle(join_key(folder, name))
        store.delete_empty(folder)
    except OSError as error:
        return f"{store.locate(folder)} could not be deleted: {error}"
    return None


def _thin(store: Store, ref: CheckpointRef, thinned: list[str]) -> str | None:
    """Leave only the weights of a checkpoint, and finish that where it was begun; see the top of the module.

    Returns:
        What went wrong, None if nothing did.
    """
    try:
        if store.exists(join_key(ref.path, MANIFEST_FILE)):
            manifest = read_manifest(store, ref)
            weights = replace(manifest, files=(manifest.file(MODEL_FILE),))
            store.put(join_key(ref.path, WEIGHTS_FILE), weights.to_bytes("weights"))
            store.delete(join_key(ref.path, MANIFEST_FILE))
            thinned.append(ref.path)
        for name in store.list(ref.path):
            if is_checkpoint_file(name) and name not in (WEIGHTS_FILE, MODEL_FILE):
                store.recycle(join_key(ref.path, name))
    except (OSError, ResumeError) as error:
        return f"{store.locate(ref.path)} could not be thinned: {error}"
    return None
