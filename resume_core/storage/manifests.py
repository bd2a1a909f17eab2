"""Reading manifests: one that a checkpoint is restored by in full, and of thousands only what decides.

Each reader checks the seal, and the place where the manifest lies. What differs is how much of it is understood: the
reference of a checkpoint, for the order of many (`read_ref`); what lists and retention go by (`read_brief`); all of it
(`read_manifest`), without which nothing is restored, copied or deleted in part.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from resume_core.errors import CheckpointNotFoundError, CorruptCheckpointError
from resume_core.storage.brief import Brief
from resume_core.storage.interface import Store
from resume_core.storage.manifest import CheckpointRef, Manifest
from resume_core.storage.paths import MANIFEST_FILE, WEIGHTS_FILE, join_key
from resume_core.storage.small import is_there, loss_is_damage

__all__ = [
    "nearest",
    "read_ahead",
    "read_brief",
    "read_manifest",
    "read_ref",
    "read_weights_brief",
    "read_weights_manifest",
]


_T = TypeVar("_T")
_Found = TypeVar("_Found", CheckpointRef, Brief, Manifest)
_Parse = Callable[..., _Found]


def read_manifest(store: Store, ref: CheckpointRef) -> Manifest:
    """The manifest of a checkpoint, checked against itself and against the place where it lies.

    Raises:
        CheckpointNotFoundError: there is no manifest: nothing was committed there, or it was pruned.
        CorruptCheckpointError: it was altered, is of a newer format, or belongs to another place.
        OSError: the store cannot be read.
    """
    return _read_committed(store, ref, Manifest.from_bytes)


def read_brief(store: Store, ref: CheckpointRef) -> Brief:
    """What lists and retention go by; all of the manifest is parsed and checked, and little of it kept.

    Raises:
        CheckpointNotFoundError: as for `read_manifest`.
        CorruptCheckpointError: likewise.
        OSError: likewise.
    """
    return _read_committed(store, ref, Brief.from_bytes)


def read_ref(store: Store, ref: CheckpointRef) -> CheckpointRef:
    """The reference with its serial. The seal is checked, and no more of the manifest than that is understood.

    Raises:
        CheckpointNotFoundError: as for `read_manifest`.
        CorruptCheckpointError: it was altered, is of a newer format, or belongs to another place. What else may be
            wrong with one that bears a seal, whoever reads it learns.
        OSError: the store cannot be read.
    """
    return _read_committed(store, ref, CheckpointRef.from_bytes)


def read_weights_manifest(store: Store, ref: CheckpointRef) -> Manifest:
    """What is left of a checkpoint that was thinned: the manifest of its weights, with the header that it had.

    Raises:
        CheckpointNotFoundError: it was not thinned, or is gone.
        CorruptCheckpointError: as for `read_manifest`.
        OSError: the store cannot be read.
    """
    return _read_weights(store, ref, Manifest.from_bytes)


def read_weights_brief(store: Store, ref: CheckpointRef) -> Brief:
    """The same, as `read_brief` gives it.

    Raises:
        CheckpointNotFoundError: as for `read_weights_manifest`.
        CorruptCheckpointError: likewise.
        OSError: likewise.
    """
    return _read_weights(store, ref, Brief.from_bytes)


def read_ahead(store: Store, refs: Sequence[CheckpointRef]) -> None:
    """Ask a store for many manifests at once, which `read_ref` and `read_brief` will be called for one by one.

    Where asking takes longer than parsing, both are made of one answer: who wants the order of checkpoints now wants to
    know after the next save what to delete.

    Args:
        store: that is going to be read; a `Glance`, or nothing comes of it.
        refs: of checkpoints that may be there.
    """

    def ways(key: str) -> dict[str, Callable[[bytes], object]]:
        parses: tuple[Callable[..., object], ...] = (CheckpointRef.from_bytes, Brief.from_bytes)
        return {parse.__qualname__: partial(parse, path=store.locate(key), kind="manifest") for parse in parses}

    store.read_ahead([join_key(ref.path, MANIFEST_FILE) for ref in refs], ways)


def nearest(stores: Sequence[Store], ref: CheckpointRef, read: Callable[[Store, CheckpointRef], _T]) -> _T:
    """What ``read`` gives, from the nearest of ``stores`` that has the manifest of a checkpoint whole.

    Raises:
        CheckpointNotFoundError: it is in none of them.
        CorruptCheckpointError: it is damaged wherever it is.
        OSError: a store cannot be read, and no other has it.
    """
    errors: list[Exception] = []
    for store in stores:
        try:
            return read(store, ref)
        except (OSError, CorruptCheckpointError) as error:
            errors.append(error)
    # absence says least: a store that could not be asked, or holds it damaged, says more
    raise next((error for error in errors if not isinstance(error, CheckpointNotFoundError)), errors[0])


def _read_committed(store: Store, ref: CheckpointRef, parse: _Parse[_Found]) -> _Found:
    try:
        return _read(store, ref, MANIFEST_FILE, "manifest", parse)
    except FileNotFoundError as error:
        path, place = store.locate(join_key(ref.path, MANIFEST_FILE)), store.locate(ref.path)
        problem = f"no committed checkpoint at {place}"
        if is_there(store, join_key(ref.path, WEIGHTS_FILE)):
            problem = f"{place} holds weights only, as Keep(thin_after=...) asks for: training cannot go on from it"
        raise CheckpointNotFoundError(problem, path=path) from error


def _read_weights(store: Store, ref: CheckpointRef, parse: _Parse[_Found]) -> _Found:
    try:
        return _read(store, ref, WEIGHTS_FILE, "weights", parse)
    except FileNotFoundError as error:
        path = store.locate(join_key(ref.path, WEIGHTS_FILE))
        raise CheckpointNotFoundError(f"no weights alone at {store.locate(ref.path)}", path=path) from error


def _read(store: Store, ref: CheckpointRef, name: str, kind: str, parse: _Parse[_Found]) -> _Found:
    key = join_key(ref.path, name)
    path = store.locate(key)
    with loss_is_damage(store, key, "read"):
        found = store.read_as(key, partial(parse, path=path, kind=kind), parse.__qualname__)
    place = found if isinstance(found, CheckpointRef) else found.ref
    if (place.attempt, place.name) != (ref.attempt, ref.name):
        raise CorruptCheckpointError(f"{path} is the manifest of {place.path}: files were moved", path=path)
    return found
