"""What a checkpoint consists of: the part of one rank, and the manifest that commits all of them.

Both are sealed JSON files (``sealed.py``). They name the attempt and the checkpoint they belong to, so that a copy in
another folder is refused.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from resume_core.errors import CorruptCheckpointError
from resume_core.storage.digest import ALGORITHM, is_digest, num_chunks
from resume_core.storage.paths import is_data_file, join_key, parse_attempt_folder, parse_checkpoint_folder
from resume_core.storage.repeated import Repeated
from resume_core.storage.sealed import FORMAT_VERSION, Fields, JsonMapping, check_seal, seal, unseal

__all__ = ["CheckpointRef", "FileRecord", "Manifest", "Part"]

_MAX_CHUNK_BYTES = 1 << 30  # a reader holds one chunk: a crafted file must not choose our memory
_MAX_WORLD_SIZE = 10**6
_T = TypeVar("_T")

# how `Manifest.to_bytes` begins
_BEGINNING = re.compile(
    rb'\{\n "format": %d,\n "kind": "([a-z]+)",\n "attempt": "([a-z0-9-]+)",\n "checkpoint": "([a-z0-9.-]+)",\n'
    rb' "serial": (0|[1-9][0-9]{0,17}),\n' % FORMAT_VERSION
)


@dataclass(frozen=True)
class CheckpointRef:
    """Where a committed checkpoint lies, and its place among those of its attempt.

    Args:
        attempt: folder of the attempt.
        name: folder of the checkpoint in it.
        serial: 0 for the first save of the attempt, then rising; None when the manifest that says so is damaged.

    Raises:
        ValueError: a folder name that is not one of ours.
    """

    attempt: str
    name: str
    serial: int | None = None

    def __post_init__(self) -> None:
        _require_place(self.attempt, self.name)

    @property
    def path(self) -> str:
        """``attempt-0002-7f3a/step-000000500``: what ``resume=`` takes."""
        return f"{self.attempt}/{self.name}"

    @classmethod
    def from_bytes(cls, data: bytes, *, path: str, kind: str = "manifest") -> CheckpointRef:
        """That of a manifest; arguments as for `Manifest.from_bytes`, which takes ten times as long.

        Of one that begins as ours do, the seal is checked and the rest of its text is left alone: a seal vouches for
        every byte. Any other is read in full.

        Raises:
            CorruptCheckpointError: it was altered, is of a newer format, or says something impossible in these fields.
        """
        found = _BEGINNING.match(data)
        if found is None or found[1] != kind.encode():
            return Manifest.from_bytes(data, path=path, kind=kind).ref
        check_seal(data, path)
        attempt, name = found[2].decode(), found[3].decode()
        try:
            return cls(attempt, name, int(found[4]))
        except ValueError as error:
            raise CorruptCheckpointError(f"{path} cannot be used: {error}", path=path) from error


@dataclass(frozen=True)
class FileRecord:
    """One file of a checkpoint and the digests of its chunks.

    Args:
        name: file name, one of those a checkpoint can hold.
        size_bytes: its exact size.
        chunk_bytes: bytes covered by each digest.
        digests: one per chunk, in order.
        algorithm: name of the digest.

    Raises:
        ValueError: values that contradict each other or that no writer of ours produces.
    """

    name: str
    size_bytes: int
    chunk_bytes: int
    digests: tuple[str, ...]
    algorithm: str = ALGORITHM

    def __post_init__(self) -> None:
        if not is_data_file(self.name):
            raise ValueError(f"{self.name!r} is not the name of a checkpoint's file")
        if self.algorithm != ALGORITHM:
            raise ValueError(
                f"{self.name} has digests of {self.algorithm!r}, this release knows {ALGORITHM!r}: upgrade"
            )
        if not (0 <= self.size_bytes < 2**63 and 0 < self.chunk_bytes <= _MAX_CHUNK_BYTES):
            raise ValueError(f"{self.name} has {self.size_bytes} bytes in chunks of {self.chunk_bytes}")
        if len(self.digests) != num_chunks(self.size_bytes, self.chunk_bytes):
            raise ValueError(f"{self.name} has {len(self.digests)} digests for {self.size_bytes} bytes")
        if not all(map(is_digest, self.digests)):
            raise ValueError(f"{self.name} has a digest that is not 32 hexadecimal digits")


@dataclass(frozen=True)
class Part:
    """What one rank wrote: its part-manifest, written after its files are durable.

    Raises:
        ValueError: names, rank or world size that do not fit together, or a file listed twice.
    """

    attempt: str
    checkpoint: str
    rank: int
    world_size: int
    files: tuple[FileRecord, ...]

    def __post_init__(self) -> None:
        _require_place(self.attempt, self.checkpoint)
        _require_world(self.world_size)
        if not 0 <= self.rank < self.world_size:
            raise ValueError(f"rank {self.rank} is not in a world of {self.world_size}")
        _require_unique(self.files)

    def to_bytes(self) -> bytes:
        """The bytes of ``part-00001.json``."""
        return seal(
            "part", {**_plain(self, "attempt", "checkpoint", "rank", "world_size"), "files": _records(self.files)}
        )

    @classmethod
    def from_bytes(cls, data: bytes, *, path: str) -> Part:
        """Read a part-manifest; ``path`` names it in messages.

        Raises:
            CorruptCheckpointError: it was altered, is of a newer format, or says something impossible.
        """
        fields = unseal("part", data, path)
        rank, place = fields.count("rank"), (fields.text("attempt"), fields.text("checkpoint"))
        files, world_size = _read_records(fields), fields.count("world_size")
        return _built(fields, cls, *place, rank, world_size, files)


@dataclass(frozen=True)
class Manifest:
    """The commit of a checkpoint: written last, and without it the folder does not exist.

    Args:
        attempt: folder of the attempt that wrote it.
        checkpoint: folder of the checkpoint.
        serial: place among the saves of the attempt; the order of checkpoints, which depends on no clock and no step.
        world_size: number of ranks that wrote a part.
        files: every file of every rank.
        header: strict JSON of the caller: step, epoch, batch, run config, provenance, metrics, timings.
        digest: the one at the end of the file that it was read from, empty before it is written. It covers the digests
            of all files, and so names what was saved.

    Raises:
        ValueError: names, serial or world size that are impossible, or a file listed twice.
    """

    attempt: str
    checkpoint: str
    serial: int
    world_size: int
    files: tuple[FileRecord, ...]
    header: JsonMapping = field(default_factory=dict)
    digest: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        _require_place(self.attempt, self.checkpoint)
        _require_world(self.world_size)
        if not 0 <= self.serial < 2**63:
            raise ValueError(f"{self.serial} is not the serial of a checkpoint")
        _require_unique(self.files)

    @property
    def ref(self) -> CheckpointRef:
        """Where it lies."""
        return CheckpointRef(self.attempt, self.checkpoint, self.serial)

    def file(self, name: str) -> FileRecord:
        """The record of one file.

        Raises:
            CorruptCheckpointError: the checkpoint has no such file.
        """
        for record in self.files:
            if record.name == name:
                return record
        path = join_key(self.ref.path, name)
        raise CorruptCheckpointError(f"the manifest of {self.ref.path} lists no file {name}", path=path)

    def to_bytes(self, kind: str = "manifest") -> bytes:
        """The bytes of ``manifest.json``, or of ``weights.json`` when ``kind`` is ``"weights"``.

        Raises:
            TypeError: the header holds something other than strict JSON; the message names the place.
            ValueError: the header holds a float that is not finite or is nested too deeply.
        """
        plain = _plain(self, "attempt", "checkpoint", "serial", "world_size", "header")
        return seal(kind, {**plain, "files": _records(self.files)})

    @classmethod
    def from_bytes(cls, data: bytes, *, path: str, kind: str = "manifest", without: Repeated | None = None) -> Manifest:
        """Read a manifest; ``path`` names it in messages. ``kind`` as for `to_bytes`, ``without`` as for `unseal`.

        Raises:
            CorruptCheckpointError: it was altered, is of a newer format, or says something impossible.
        """
        fields = unseal(kind, data, path, without=without)
        place = (fields.text("attempt"), fields.text("checkpoint"))
        counts = (fields.count("serial"), fields.count("world_size"))
        rest = (_read_records(fields), fields.mapping("header"), fields.text("digest"))
        return _built(fields, cls, *place, *counts, *rest)


def _built(fields: Fields, kind: type[_T], *args: Any) -> _T:
    """``kind(*args)`` from fields of a file, where a value that does not fit means that the file cannot be used."""
    try:
        return kind(*args)
    except ValueError as error:
        fields.fail(str(error))


def _plain(value: object, *names: str) -> dict[str, Any]:
    return {name: getattr(value, name) for name in names}


def _records(files: Iterable[FileRecord]) -> list[dict[str, Any]]:
    plain = ("name", "size_bytes", "chunk_bytes", "algorithm")
    return [{**_plain(record, *plain), "digests": list(record.digests)} for record in files]


def _read_records(fields: Fields) -> tuple[FileRecord, ...]:
    return tuple(
        _built(
            record,
            FileRecord,
            record.text("name"),
            record.count("size_bytes"),
            record.count("chunk_bytes"),
            record.texts("digests"),
            record.text("algorithm"),
        )
        for record in fields.objects("files")
    )


def _require_place(attempt: str, checkpoint: str) -> None:
    if parse_attempt_folder(attempt) is None or parse_checkpoint_folder(checkpoint) is None:
        raise ValueError(f"{attempt!r} / {checkpoint!r} is not the place of a checkpoint")


def _require_world(world_size: int) -> None:
    if not 1 <= world_size <= _MAX_WORLD_SIZE:
        raise ValueError(f"{world_size} is not a world size")


def _require_unique(files: tuple[FileRecord, ...]) -> None:
    twice = sorted(name for name, times in Counter(record.name for record in files).items() if times > 1)
    if twice:
        raise ValueError(f"a file is listed twice: {', '.join(twice[:8])}")
