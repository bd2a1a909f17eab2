"""The tiers of a run: the stores that may hold its checkpoints, nearest first.

The run's directory holds the claims and, in the end, every checkpoint that is kept. In front of it may lie a fast local
directory, the *scratch*, which holds the newest one or two: a checkpoint is committed there first, and promoted to the
directory beside training. Layout and commit are the same on every tier, and so is every byte of a file.

Whose folder it is: a folder of a nearer tier belongs to the run exactly when its ``attempt.json`` is, byte by byte, the
one in the directory. A claim holds a random id, so several runs may share a scratch, and what another run, or a run in
another directory, has there is never read, counted or deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from resume_core.errors import CheckpointNotFoundError, CorruptCheckpointError
from resume_core.storage.brief import Brief
from resume_core.storage.interface import Store
from resume_core.storage.manifest import CheckpointRef, Manifest
from resume_core.storage.manifests import nearest, read_ahead, read_brief, read_manifest, read_ref
from resume_core.storage.paths import ATTEMPT_FILE, MANIFEST_FILE, WEIGHTS_FILE, join_key
from resume_core.storage.small import is_there

__all__ = ["Tiers"]

_T = TypeVar("_T")


class Tiers:
    """An ordered list of stores.

    Args:
        directory: the store of the claims.
        stores: where checkpoints are looked for, nearest first; ``directory`` alone unless given.
    """

    def __init__(self, directory: Store, stores: Sequence[Store] = ()) -> None:
        self.directory = directory
        self.stores = tuple(stores) or (directory,)
        self._claims: dict[str, bytes] = {}  # of attempts, which never change

    @property
    def nearer(self) -> Store | None:
        """The store in front of the directory, None when there is none."""
        return self.stores[0] if self.stores[0] is not self.directory else None

    def admit(self, store: Store, attempt: str) -> bool:
        """Make the folder of an attempt in a nearer tier one of the run's.

        Returns:
            False when something else is in its place there, which is left as it was.

        Raises:
            OSError: either store refused.
        """
        claim = self.directory.read(join_key(attempt, ATTEMPT_FILE))
        return store.create(join_key(attempt, ATTEMPT_FILE), claim) or self.holds(store, attempt)

    def holds(self, store: Store, attempt: str) -> bool:
        """Whether the folder of that name in ``store`` is that of the run's attempt.

        Raises:
            OSError: a store cannot be read.
        """
        if store is self.directory:
            return True
        key = join_key(attempt, ATTEMPT_FILE)
        try:
            found = store.read(key)
        except (FileNotFoundError, PermissionError):  # not there, or another user's in a place that many share
            return False
        except OSError as error:
            if store.is_lost(error):
                return False
            raise
        if attempt not in self._claims:
            try:
                self._claims[attempt] = self.directory.read(key)
            except FileNotFoundError:
                return False
        return found == self._claims[attempt]

    def holding(self, attempt: str) -> list[Store]:
        """The tiers with a folder of that attempt, nearest first.

        Raises:
            OSError: a store cannot be read.
        """
        return [store for store in self.stores if self.holds(store, attempt)]

    def committed(self, ref: CheckpointRef) -> list[Store]:
        """The tiers in which a checkpoint is committed, nearest first; its manifest may be damaged, or lost.

        Raises:
            OSError: a store cannot be read.
        """
        key = join_key(ref.path, MANIFEST_FILE)
        return [store for store in self.holding(ref.attempt) if is_there(store, key)]

    def with_weights(self, ref: CheckpointRef) -> list[Store]:
        """The tiers in which a checkpoint was thinned to its weights, nearest first.

        Raises:
            OSError: a store cannot be read.
        """
        key = join_key(ref.path, WEIGHTS_FILE)
        return [store for store in self.holding(ref.attempt) if is_there(store, key)]

    def damaged(self, ref: CheckpointRef) -> list[CorruptCheckpointError]:
        """What is wrong with those copies of a checkpoint's manifest that cannot be used; for a loud report.

        Raises:
            OSError: a store cannot be read.
        """
        found = []
        for store in self.committed(ref):
            try:
                read_manifest(store, ref)
            except CorruptCheckpointError as error:
                found.append(error)
            except CheckpointNotFoundError:  # pruned meanwhile
                continue
        return found

    def read_manifest(self, ref: CheckpointRef) -> Manifest:
        """The manifest of a checkpoint, from the nearest tier that has it whole.

        Raises:
            CheckpointNotFoundError: it is in none of them: nothing was committed there, or it was pruned.
            CorruptCheckpointError: it is damaged wherever it is.
            OSError: a store cannot be read, and no other has it.
        """
        return self._nearest(ref, read_manifest)

    def read_brief(self, ref: CheckpointRef) -> Brief:
        """What lists and retention go by; raises as `read_manifest` does."""
        return self._nearest(ref, read_brief)

    def read_ref(self, ref: CheckpointRef) -> CheckpointRef:
        """The reference with its serial; raises as `read_manifest` does, where the seal is broken."""
        return self._nearest(ref, read_ref)

    def read_ahead(self, attempt: str, names: Sequence[str]) -> None:
        """`read_ref` or `read_brief` is going to be asked for these checkpoints of an attempt.

        Raises:
            OSError: a store cannot be read.
        """
        for store in self.holding(attempt):
            read_ahead(store, [CheckpointRef(attempt, name) for name in names])

    def _nearest(self, ref: CheckpointRef, read: Callable[[Store, CheckpointRef], _T]) -> _T:
        stores = self.holding(ref.attempt)
        if not stores:
            raise CheckpointNotFoundError(f"no committed checkpoint {ref.path} in {self.stores[0].url}", path=ref.path)
        return nearest(stores, ref, read)
