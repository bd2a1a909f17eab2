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
the line. Without checkpoints it is taken for a claim that never finished, and passed over.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from resume_core.errors import CheckpointNotFoundError, CorruptCheckpointError, SupersededError
from resume_core.storage.interface import Store
from resume_core.storage.manifest import CheckpointRef, Manifest
from resume_core.storage.paths import (
    ATTEMPT_FILE,
    MANIFEST_FILE,
    attempt_folder,
    join_key,
    parse_attempt_folder,
    parse_checkpoint_folder,
)
from resume_core.storage.read import read_manifest
from resume_core.storage.sealed import Fields, JsonMapping, seal, unseal

__all__ = ["Attempt", "Lineage"]


@dataclass(frozen=True)
class Attempt:
    """One start of the job.

    Args:
        number: 1 for the first start of the run, then rising.
        token: four hexadecimal digits that keep two claims of one number apart.
        parent: folder of the attempt that it continues, None when it began the run anew.
        restored_from: the checkpoint it went on from, with its serial; None when there was none.
        info: strict JSON of the caller: host, accepted config differences, origin.
        claim_id: random, tells two claims apart that drew the same token.

    Raises:
        ValueError: a number or token that no folder can have, or a parent that is not older.
    """

    number: int
    token: str
    parent: str | None = None
    restored_from: CheckpointRef | None = None
    info: JsonMapping = field(default_factory=dict)
    claim_id: str = ""

    def __post_init__(self) -> None:
        attempt_folder(self.number, self.token)
        origin = self.restored_from.attempt if self.restored_from is not None else None
        for older in (self.parent, origin):
            place = parse_attempt_folder(older) if older is not None else (0, "")
            if place is None or place[0] >= self.number:
                raise ValueError(f"attempt {self.number} cannot continue {older!r}: that is no older attempt")
        if self.restored_from is not None and self.restored_from.serial is None:
            raise ValueError(f"{self.restored_from.path} has no serial: pass the reference of its manifest")

    @property
    def name(self) -> str:
        """Its folder."""
        return attempt_folder(self.number, self.token)

    def to_bytes(self) -> bytes:
        """The bytes of ``attempt.json``.

        Raises:
            TypeError: ``info`` is not strict JSON.
            ValueError: ``info`` holds a float that is not finite or is nested too deeply.
        """
        origin = self.restored_from
        restored_from = origin and {"attempt": origin.attempt, "name": origin.name, "serial": origin.serial}
        plain = {"number": self.number, "token": self.token, "parent": self.parent, "claim_id": self.claim_id}
        return seal("attempt", {**plain, "restored_from": restored_from, "info": self.info})

    @classmethod
    def from_bytes(cls, data: bytes, *, path: str) -> Attempt:
        """Read ``attempt.json``; ``path`` names it in messages.

        Raises:
            CorruptCheckpointError: it was altered, is of a newer format, or says something impossible.
        """
        fields = unseal("attempt", data, path)
        try:
            return cls(
                number=fields.count("number"),
                token=fields.text("token"),
                parent=fields.optional_text("parent"),
                restored_from=_read_ref(fields),
                info=fields.mapping("info"),
                claim_id=fields.text("claim_id"),
            )
        except ValueError as error:
            fields.fail(str(error))


def _read_ref(fields: Fields) -> CheckpointRef | None:
    if fields.value("restored_from") is None:
        return None
    inner = fields.object("restored_from")
    return CheckpointRef(inner.text("attempt"), inner.text("name"), inner.count("serial"))


class Lineage:
    """The attempts in a store. It caches nothing: other processes claim and commit at any time.

    Args:
        store: the run's store, shared by all attempts.
    """

    def __init__(self, store: Store) -> None:
        self.store = store

    def attempts(self) -> list[Attempt]:
        """All attempts with a valid ``attempt.json``, oldest first.

        Raises:
            OSError: the store cannot be read.
        """
        found = (self._load(folder) for folder in self._folders())
        return [attempt for attempt in found if isinstance(attempt, Attempt)]

    def damaged(self) -> list[CorruptCheckpointError]:
        """What is wrong with each ``attempt.json`` that cannot be used, oldest first; for a loud report.

        Raises:
            OSError: the store cannot be read.
        """
        found = (self._load(folder) for folder in self._folders())
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
            number = max((_order(folder)[0] for folder in self._folders()), default=0) + 1
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
        newer = [folder for folder in self._folders() if _order(folder) > (attempt.number, attempt.token)]
        for folder in reversed(newer):
            if self.store.exists(join_key(folder, ATTEMPT_FILE)):
                raise SupersededError(
                    f"{folder} of this run has started after {attempt.name}, which must stop now and commits nothing "
                    f"more. Stop this process; if both should run, give them different directories.",
                    path=self.store.locate(attempt.name),
                )

    def checkpoints(self, attempt: str) -> list[CheckpointRef]:
        """The committed checkpoints of one attempt, newest first, whether on a line or not.

        Args:
            attempt: its folder.

        Raises:
            OSError: the store cannot be read.
        """
        names = [name for name in self.store.list(attempt) if parse_checkpoint_folder(name) is not None]
        committed = [name for name in names if self.store.exists(join_key(attempt, name, MANIFEST_FILE))]
        refs = [self._ref(attempt, name) for name in committed]
        return sorted((ref for ref in refs if ref is not None), key=_position(refs), reverse=True)

    def candidates(self, which: str | None = None) -> Iterator[CheckpointRef]:
        """What can be resumed, best first.

        Args:
            which: a name for ``find``: then that checkpoint and no other, since it was asked for by name.

        Yields:
            References; one with ``serial`` None has a manifest that cannot be read.

        Raises:
            CheckpointNotFoundError: ``which`` is not there; or the newest attempt went on from a checkpoint and
                neither that nor anything else of its line is left.
            CorruptCheckpointError: after the last one, when the line goes on in an attempt that cannot be read.
            OSError: the store cannot be read.
        """
        if which is not None:
            yield self.find(which)
            return
        for folder in reversed(self._folders()):
            found = self._load(folder)
            if isinstance(found, Attempt) or (found is not None and self.checkpoints(folder)):
                yield from self.line(folder)
                return

    def line(self, attempt: str) -> Iterator[CheckpointRef]:
        """What an attempt could have resumed from, newest first: the line rule, applied to any attempt.

        Args:
            attempt: its folder.

        Raises:
            CheckpointNotFoundError: it went on from a checkpoint, and nothing of its line is left.
            CorruptCheckpointError: after the last one, when the line goes on in an attempt that cannot be read.
            OSError: the store cannot be read.
        """
        folder, branch, num_found = attempt, None, 0
        while True:
            own = self._before(folder, branch)
            yield from own
            num_found += len(own)
            branch = self._loaded(folder).restored_from
            if branch is None:
                break
            folder = branch.attempt
        if not num_found and folder != attempt:
            raise CheckpointNotFoundError(
                f"{attempt} went on from a checkpoint, and neither that nor an older one of its line is left in "
                f"{self.store.url}. Restore the files, name another checkpoint, or start anew on purpose. "
                f"{self._inventory()}",
                path=self.store.locate(attempt),
            )

    def find(self, prefix: str) -> CheckpointRef:
        """The checkpoint of a name like ``attempt-0002/step-000000500``; unique prefixes of either part do.

        A full name wins over longer ones that begin with it (``step-000000500`` over ``step-000000500.2``). Without
        a checkpoint (``attempt-0002``) it is the newest of that attempt.

        Raises:
            CheckpointNotFoundError: none or more than one fits; lists what exists.
            OSError: the store cannot be read.
        """
        attempt_prefix, _, name_prefix = prefix.strip("/").partition("/")
        fitting: list[CheckpointRef] = []
        for folder in (name for name in self._folders() if name.startswith(attempt_prefix)):
            refs = [ref for ref in self.checkpoints(folder) if ref.name.startswith(name_prefix)]
            exact = [ref for ref in refs if ref.name == name_prefix]
            fitting += exact or (refs if name_prefix else refs[:1])
        if len(fitting) == 1:
            return fitting[0]
        names = ", ".join(ref.path for ref in fitting[:20])
        problem = f"{len(fitting)} checkpoints fit: {names}." if fitting else "there is no such checkpoint."
        raise CheckpointNotFoundError(f"{prefix!r} in {self.store.url}: {problem} {self._inventory()}", path=prefix)

    def read_manifest(self, ref: CheckpointRef) -> Manifest:
        """The manifest of a checkpoint; see ``read.read_manifest``."""
        return read_manifest(self.store, ref)

    def _folders(self) -> list[str]:
        return sorted((name for name in self.store.list("") if parse_attempt_folder(name) is not None), key=_order)

    def _load(self, folder: str) -> Attempt | CorruptCheckpointError | None:
        """The attempt, what is wrong with it, or None where nothing was ever claimed."""
        key = join_key(folder, ATTEMPT_FILE)
        path = self.store.locate(key)
        try:
            attempt = Attempt.from_bytes(self.store.read(key), path=path)
        except FileNotFoundError:
            lost = CorruptCheckpointError(f"{path} is missing, but {folder} has checkpoints", path=path)
            return lost if self.checkpoints(folder) else None
        except CorruptCheckpointError as error:
            return error
        if attempt.name != folder:
            return CorruptCheckpointError(f"{path} is that of {attempt.name}: files were moved", path=path)
        return attempt

    def _loaded(self, folder: str) -> Attempt:
        found = self._load(folder)
        if isinstance(found, Attempt):
            return found
        path = self.store.locate(join_key(folder, ATTEMPT_FILE))
        problem = str(found) if found is not None else f"{path} is missing."
        raise CorruptCheckpointError(
            f"What came before {folder} is unknown: {problem} To go on, name a checkpoint (resume=...). "
            f"{self._inventory()}",
            path=path,
        ) from found

    def _before(self, folder: str, branch: CheckpointRef | None) -> list[CheckpointRef]:
        """The checkpoints of an attempt, newest first, from the one branched off at on."""
        refs = self.checkpoints(folder)
        if branch is None:
            return refs
        position = _position([*refs, branch])
        # By name too: the branching point itself may be damaged by now, and so without a serial.
        return [ref for ref in refs if ref.name == branch.name or position(ref) <= position(branch)]

    def _ref(self, attempt: str, name: str) -> CheckpointRef | None:
        try:
            return self.read_manifest(CheckpointRef(attempt, name)).ref
        except CheckpointNotFoundError:  # pruned since it was listed
            return None
        except CorruptCheckpointError:
            return CheckpointRef(attempt, name)

    def _inventory(self) -> str:
        paths = [ref.path for folder in reversed(self._folders()) for ref in self.checkpoints(folder)]
        if not paths:
            return "No committed checkpoint exists."
        more = f" and {len(paths) - 20} older ones" if len(paths) > 20 else ""
        return f"What exists: {', '.join(paths[:20])}{more}."


def _order(folder: str) -> tuple[int, str]:
    """Sort key of attempt folders; never of their names, which stop sorting at number 10000."""
    return parse_attempt_folder(folder) or (0, "")


def _position(refs: list[CheckpointRef | None] | list[CheckpointRef]) -> Callable[[CheckpointRef], Any]:
    """Sort key of the checkpoints of one attempt: the serial.

    One without a serial (a damaged manifest) comes right after the newest sound one whose step is not above its own:
    only its place in the report depends on that.
    """
    sound = [(parse_checkpoint_folder(r.name) or (0, 0), r.serial) for r in refs if r and r.serial is not None]

    def key(ref: CheckpointRef) -> Any:
        place = parse_checkpoint_folder(ref.name) or (0, 0)
        if ref.serial is not None:
            return (ref.serial, 0, place)
        return (max((serial for other, serial in sound if other <= place), default=-1), 1, place)

    return key
