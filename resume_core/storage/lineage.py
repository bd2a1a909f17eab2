"""Attempts of a run, and which checkpoint the next one goes on from.

**Attempts.** Each start of the job claims a folder ``attempt-0003-7f3a`` by creating ``attempt.json`` in it. Attempts
are ordered by (number, token), for everybody alike. Two starts that claim at once get one number and two tokens: both
exist, the one with the greater token is newer, the other finds out at its first commit and stops.

**The line rule.** What can be resumed is the line of the newest attempt and nothing else: its own checkpoints, newest
first; then the checkpoint it was restored from and the older ones of that attempt; then the one *that* attempt was
restored from; and so on. "Newer" inside an attempt is the serial in the manifest. ``attempt.json`` keeps the serial of
the checkpoint restored from, so the branching point holds even when that checkpoint is pruned or damaged. What an old
attempt writes beyond the point where a newer one branched off (a zombie's work) is on no line and is never offered.

**Where a line ends.** At an attempt that was restored from nothing: it began the run anew (the first start, or
``resume="never"``). If it died before it committed, its line is empty although older attempts have checkpoints; going
on from those would continue a run that the user left on purpose, so nothing is offered. They can be named explicitly.
But a line that was restored from something and has nothing left to offer raises ``CheckpointNotFoundError``: a run
that had made progress never starts from scratch silently.

**Damage.** A manifest that cannot be read is offered in its place (``serial`` None), so that whoever reads it reports
it and takes the next. An ``attempt.json`` that cannot be read while the attempt has checkpoints hides only what lies
beyond: the attempt's own checkpoints are offered, then ``CorruptCheckpointError`` is raised rather than a guess about
the line. Without checkpoints it is taken for a claim that never finished, and passed over. Where the disk has lost the
folder of an attempt itself, so that nobody knows what was in it, the rest of the line is offered; when there is no
rest, that is an error and no new run.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterator, Sequence
from contextlib import suppress

from resume_core.errors import CheckpointNotFoundError, CorruptCheckpointError, ResumeError, SupersededError
from resume_core.storage.attempt import Attempt
from resume_core.storage.brief import Brief
from resume_core.storage.glance import Glance, Memo
from resume_core.storage.interface import Store
from resume_core.storage.manifest import CheckpointRef, Manifest
from resume_core.storage.manifests import read_weights_brief
from resume_core.storage.newer import before, by_number, by_serial
from resume_core.storage.paths import (
    ATTEMPT_FILE,
    WEIGHTS_FILE,
    join_key,
    parse_attempt_folder,
    parse_checkpoint_folder,
)
from resume_core.storage.sealed import JsonMapping
from resume_core.storage.small import is_there, list_folder, read_small
from resume_core.storage.tiers import Tiers

__all__ = ["Lineage"]

_MOST_LOOKS = 3  # at a line that seems to be empty

_log = logging.getLogger("exact_resume")


class Lineage:
    """The attempts of a run and their checkpoints. Other processes claim and commit at any time: every call looks anew.

    Args:
        store: the run's directory, shared by all attempts.
        stores: where checkpoints are looked for, nearest first; ``store`` alone unless given.
    """

    def __init__(self, store: Store, stores: Sequence[Store] = ()) -> None:
        self.store = store
        self.tiers = Tiers(store, stores)
        self._memo = Memo()

    def glance(self, *stores: Store) -> Lineage:
        """The run as it is when first looked at, for one operation that looks often; see `Glance`.

        Args:
            stores: where checkpoints are looked for; everywhere unless given.
        """
        directory = Glance(self.store, self._memo)
        looked_at = [
            directory if store is self.store else Glance(store, self._memo) for store in stores or self.tiers.stores
        ]
        return Lineage(directory, looked_at)

    def on(self, store: Store) -> Lineage:
        """The same attempts, with what one tier alone holds of their checkpoints."""
        return Lineage(self.store, [store])

    def attempts(self) -> list[Attempt]:
        """All attempts with a valid ``attempt.json``, oldest first.

        Raises:
            OSError: the store cannot be read.
        """
        found = (self._load(folder) for folder in self._folders())
        return [attempt for attempt in found if isinstance(attempt, Attempt)]

    def damaged(self) -> list[CorruptCheckpointError]:
        """What is wrong with each ``attempt.json`` that cannot be used, and each folder of an attempt, oldest first.

        For a loud report.

        Raises:
            OSError: the store cannot be read.
        """
        found = [error for folder in self._folders() for error in (self._load(folder), *self.lost(folder))]
        return [error for error in found if isinstance(error, CorruptCheckpointError)]

    def newest(self) -> Attempt | None:
        """The newest valid attempt, None in an empty store.

        Raises:
            OSError: the store cannot be read.
        """
        for folder in reversed(self._folders()):
            if isinstance(attempt := self._load(folder), Attempt):
                return attempt
        return None

    def attempt(self, name: str) -> Attempt | None:
        """The attempt whose folder is ``name``, None when it is not there or cannot be used.

        Raises:
            OSError: the store cannot be read.
        """
        found = self._load(name)
        return found if isinstance(found, Attempt) else None

    def claim(
        self, *, parent: str | None = None, restored_from: CheckpointRef | None = None, info: JsonMapping | None = None
    ) -> Attempt:
        """Claim the next attempt: after the restore and before the first batch; on one rank.

        From here on older attempts may not commit.

        Args:
            parent: folder of the attempt this one continues; that of ``restored_from`` when there is one.
            restored_from: the checkpoint that was loaded, with its serial.
            info: strict JSON to keep with the attempt.

        Raises:
            TypeError: ``info`` is not strict JSON.
            ValueError: ``parent`` or ``restored_from`` is no attempt that came before.
            OSError: the store cannot be written.
        """
        if parent is None and restored_from is not None:
            parent = restored_from.attempt
        while True:
            # Folders count whether they are valid or not: a number is never given out again.
            number = max((by_number(folder)[0] for folder in self._folders()), default=0) + 1
            token, claim_id = secrets.token_hex(2), secrets.token_hex(16)
            attempt = Attempt(number, token, parent, restored_from, dict(info or {}), claim_id)
            if self.store.create(join_key(attempt.name, ATTEMPT_FILE), attempt.to_bytes()):
                return attempt

    def check_newest(self, attempt: Attempt) -> None:
        """Check that no newer attempt was claimed; for ``CheckpointWriter.commit``.

        Raises:
            SupersededError: one was; names both.
            OSError: the store cannot be read, so that it is not known.
        """
        newer = [folder for folder in self._folders() if by_number(folder) > (attempt.number, attempt.token)]
        for folder in reversed(newer):
            if self.store.exists(join_key(folder, ATTEMPT_FILE)):
                raise SupersededError(
                    f"{folder} of this run has started after {attempt.name}, which must stop now and commits nothing "
                    f"more. Stop this process; if both should run, give them different directories.",
                    path=self.store.locate(attempt.name),
                )

    def check_claim(self, attempt: Attempt) -> None:
        """`check_newest`, and that the claim itself is still there; for a commit.

        A directory that was deleted while its run trains is taken again: the run is worth more than what it had saved.

        Raises:
            SupersededError: a newer attempt was claimed; names both.
            ResumeError: the claim is gone and other attempts are there: somebody deleted the one, or began a new run.
            OSError: the store cannot be read, or the claim cannot be made again.
        """
        self.check_newest(attempt)
        key = join_key(attempt.name, ATTEMPT_FILE)
        if is_there(self.store, key):
            return
        others = [folder for folder in self._folders() if folder != attempt.name and self._load(folder) is not None]
        if others:
            raise ResumeError(
                f"{self.store.locate(key)} was deleted while {attempt.name} is running, and {others[-1]} is there. "
                "If that is another run, stop this process: one directory is one run.",
                path=self.store.locate(attempt.name),
            )
        _log.warning("%s was deleted while its run is training: it is made again", self.store.url)
        self.store.create(key, attempt.to_bytes())

    def checkpoints(self, attempt: str) -> list[CheckpointRef]:
        """The committed checkpoints of one attempt, newest first, whether on a line or not.

        Seals are checked, and nothing beyond them: what else a manifest holds is seen by whoever reads it.

        Args:
            attempt: its folder.

        Raises:
            OSError: the store cannot be read.
        """
        names = self.names(attempt)
        self.tiers.read_ahead(attempt, names)
        refs = [self._ref(attempt, name) for name in names]
        return sorted((ref for ref in refs if ref is not None), key=by_serial(refs), reverse=True)

    def briefs(self, attempt: str) -> dict[CheckpointRef, Brief | None]:
        """`checkpoints`, each with what lists and retention go by; None and no serial for one that cannot be used.

        Args:
            attempt: its folder.

        Raises:
            OSError: the store cannot be read.
        """
        names = self.names(attempt)
        self.tiers.read_ahead(attempt, names)
        found = dict(pair for name in names if (pair := self._brief(CheckpointRef(attempt, name))) is not None)
        return {ref: found[ref] for ref in sorted(found, key=by_serial(list(found)), reverse=True)}

    def _brief(self, ref: CheckpointRef) -> tuple[CheckpointRef, Brief | None] | None:
        try:
            brief = self.read_brief(ref)
        except CheckpointNotFoundError:  # pruned since it was listed
            return None
        except CorruptCheckpointError:
            return ref, None
        return brief.ref, brief

    def weights(self, attempt: str) -> Iterator[tuple[CheckpointRef, Brief | CorruptCheckpointError]]:
        """The thinned checkpoints of an attempt, each with what was left of it or with what is wrong with that.

        One that is being thinned is whole until its manifest is gone.

        Args:
            attempt: its folder.

        Raises:
            OSError: the store cannot be read.
        """
        store = self.tiers.stores[-1]
        for ref in (CheckpointRef(attempt, name) for name in self.names(attempt)):
            found: Brief | CorruptCheckpointError
            if self.tiers.committed(ref) or not is_there(store, join_key(ref.path, WEIGHTS_FILE)):
                continue
            try:
                found = read_weights_brief(store, ref)
            except CheckpointNotFoundError:
                continue
            except CorruptCheckpointError as error:
                found = error
            yield (found.ref if isinstance(found, Brief) else ref), found

    def names(self, attempt: str) -> list[str]:
        """The checkpoint folders of an attempt, on any tier, whatever is in them, by their names.

        Args:
            attempt: its folder.

        Raises:
            OSError: the store cannot be read.
        """
        names = set[str]()
        for store in self.tiers.holding(attempt):
            with suppress(CorruptCheckpointError):  # `lost` tells
                names.update(list_folder(store, attempt))
        return sorted(name for name in names if parse_checkpoint_folder(name) is not None)

    def lost(self, attempt: str) -> list[CorruptCheckpointError]:
        """Where the disk has lost the folder of an attempt, so that what was in it is unknown.

        Raises:
            OSError: the store cannot be read.
        """
        found = []
        for store in self.tiers.holding(attempt):
            try:
                list_folder(store, attempt)
            except CorruptCheckpointError as error:
                found.append(error)
        return found

    def candidates(self) -> Iterator[CheckpointRef]:
        """What can be resumed, best first.

        Yields:
            References; one with ``serial`` None has a manifest that cannot be read.

        Raises:
            CheckpointNotFoundError: the newest attempt went on from a checkpoint and neither that nor anything else of
                its line is left.
            CorruptCheckpointError: after the last one, when the line goes on in an attempt that cannot be read.
            OSError: the store cannot be read.
        """
        for folder in reversed(self._folders()):
            found = self._load(folder)
            if isinstance(found, Attempt) or (found is not None and self._may_hold(folder)):
                yield from self.line(folder)
                return

    def line(self, attempt: str) -> Iterator[CheckpointRef]:
        """What an attempt could have resumed from, newest first: the line rule, applied to any attempt.

        Args:
            attempt: its folder.

        Raises:
            CheckpointNotFoundError: it went on from a checkpoint, and nothing of its line is left.
            CorruptCheckpointError: after the last one, when the line goes on in an attempt that cannot be read; nothing
                of it is left but what the disk has lost.
            OSError: the store cannot be read.
        """
        folders, num_found, lost = list[str](), 0, list[CorruptCheckpointError]()
        for looks_left in reversed(range(_MOST_LOOKS)):
            folders, lost = [], []
            for folder, branch in self.branches(attempt):
                own = before(self.checkpoints(folder), branch)
                yield from own
                num_found += len(own)
                lost += self.lost(folder)
                folders.append(folder)
            if num_found or not looks_left or not self._may_have_moved_on(folders):
                break
        if not num_found and lost:
            raise CorruptCheckpointError(
                f"{lost[0]} Nothing else of this run's line is left. Mend the disk or restore the files, name another "
                f"checkpoint, or start anew on purpose. {self.inventory()}",
                path=lost[0].path,
            )
        if not num_found and folders != [attempt]:
            raise CheckpointNotFoundError(
                f"{attempt} went on from a checkpoint, and neither that nor an older one of its line is left in "
                f"{self.store.url}. Restore the files, name another checkpoint, or start anew on purpose. "
                f"{self.inventory()}",
                path=self.store.locate(attempt),
            )

    def _may_have_moved_on(self, folders: Sequence[str]) -> bool:
        """Look again where nothing was found on a line: a run that goes on may have deleted what had been listed.

        Something is committed at any moment, but not the same: the next was there before its predecessor went.
        """
        if len(folders) == 1 and not self.names(folders[0]):
            return False
        for store in (self.store, *self.tiers.stores):
            for folder in folders:
                store.look_again(folder)
        return True

    def branches(self, attempt: str) -> Iterator[tuple[str, CheckpointRef | None]]:
        """The attempts of a line, newest first, each with the checkpoint that the next newer one branched off at.

        Args:
            attempt: its folder; the first of the line, with None.

        Raises:
            CorruptCheckpointError: the line goes on in an attempt that cannot be read.
            OSError: the store cannot be read.
        """
        folder: str = attempt
        branch: CheckpointRef | None = None
        while True:
            yield folder, branch
            branch = self._loaded(folder).restored_from
            if branch is None:
                return
            folder = branch.attempt

    def read_manifest(self, ref: CheckpointRef) -> Manifest:
        """The manifest of a checkpoint; see `Tiers.read_manifest`."""
        return self.tiers.read_manifest(ref)

    def read_brief(self, ref: CheckpointRef) -> Brief:
        """What lists and retention go by of a checkpoint; see `Tiers.read_brief`."""
        return self.tiers.read_brief(ref)

    def _folders(self) -> list[str]:
        return sorted((name for name in self.store.list("") if parse_attempt_folder(name) is not None), key=by_number)

    def _load(self, folder: str) -> Attempt | CorruptCheckpointError | None:
        """The attempt, what is wrong with it, or None where nothing was ever claimed."""
        key = join_key(folder, ATTEMPT_FILE)
        path = self.store.locate(key)
        try:
            attempt = Attempt.from_bytes(read_small(self.store, key), path=path)
        except FileNotFoundError:
            lost = CorruptCheckpointError(f"{path} is missing, but {folder} has checkpoints.", path=path)
            return lost if self._may_hold(folder) else None
        except CorruptCheckpointError as error:
            return error
        if attempt.name != folder:
            return CorruptCheckpointError(f"{path} is that of {attempt.name}: files were moved", path=path)
        return attempt

    def _may_hold(self, folder: str) -> bool:
        """Whether an attempt has checkpoints, as far as that can be known."""
        return bool(self.checkpoints(folder) or self.lost(folder))

    def _loaded(self, folder: str) -> Attempt:
        found = self._load(folder)
        if isinstance(found, Attempt):
            return found
        path = self.store.locate(join_key(folder, ATTEMPT_FILE))
        problem = str(found).rstrip(".") if found is not None else f"{path} is missing"
        raise CorruptCheckpointError(
            f"What came before {folder} is unknown: {problem}. To go on, name a checkpoint (resume=...). "
            f"{self.inventory()}",
            path=path,
        ) from found

    def _ref(self, attempt: str, name: str) -> CheckpointRef | None:
        try:
            return self.tiers.read_ref(CheckpointRef(attempt, name))
        except CheckpointNotFoundError:  # pruned since it was listed
            return None
        except CorruptCheckpointError:
            return CheckpointRef(attempt, name)

    def inventory(self) -> str:
        """A sentence that lists the committed checkpoints, newest first; for messages.

        Raises:
            OSError: the store cannot be read.
        """
        paths = [ref.path for folder in reversed(self._folders()) for ref in self.checkpoints(folder)]
        if not paths:
            return "No committed checkpoint exists."
        more = f" and {len(paths) - 20} older ones" if len(paths) > 20 else ""
        return f"What exists: {', '.join(paths[:20])}{more}."
