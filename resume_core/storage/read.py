"""Reading a committed checkpoint: no byte is handed out whose digest was not checked."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from resume_core.errors import CheckpointNotFoundError, CorruptCheckpointError
from resume_core.storage.digest import CHUNK_BYTES, byte_view, digest, iter_chunks
from resume_core.storage.interface import Store
from resume_core.storage.manifest import CheckpointRef, FileRecord, Manifest
from resume_core.storage.paths import MANIFEST_FILE, join_key

__all__ = ["FileReader", "digest_file", "read_file", "read_file_into", "read_manifest", "verify"]

_log = logging.getLogger("exact_resume")


def read_manifest(store: Store, ref: CheckpointRef) -> Manifest:
    """The manifest of a checkpoint, checked against itself and against the place where it lies.

    Raises:
        CheckpointNotFoundError: there is no manifest: nothing was committed there, or it was pruned.
        CorruptCheckpointError: it was altered, is of a newer format, or belongs to another place.
        OSError: the store cannot be read.
    """
    key = join_key(ref.path, MANIFEST_FILE)
    path = store.locate(key)
    try:
        data = store.read(key)
    except FileNotFoundError as error:
        raise CheckpointNotFoundError(f"no committed checkpoint at {store.locate(ref.path)}", path=path) from error
    manifest = Manifest.from_bytes(data, path=path)
    if (manifest.attempt, manifest.checkpoint) != (ref.attempt, ref.name):
        raise CorruptCheckpointError(f"{path} is the manifest of {manifest.ref.path}: files were moved", path=path)
    return manifest


def read_file(stores: Sequence[Store], ref: CheckpointRef, record: FileRecord) -> bytearray:
    """All bytes of one file of a checkpoint, checked.

    Args:
        stores: those that may hold it, nearest first: what one lacks, or holds damaged, comes from the next.
        ref: the checkpoint.
        record: the file, from the checkpoint's manifest.

    Raises:
        CorruptCheckpointError: no store has a chunk as it was saved: it was altered, or the file is missing, too short
            or too long. Names checkpoint, file and chunk.
        OSError: a store cannot be read, and no other has what was sought there.
    """
    reader = FileReader(stores, ref, record)  # before the memory is allocated: a size is only a claim until then
    buffer = bytearray(record.size_bytes)
    reader.read_into(memoryview(buffer))
    return buffer


def read_file_into(
    stores: Sequence[Store], ref: CheckpointRef, record: FileRecord, view: memoryview | bytearray
) -> None:
    """Read one file into memory of the caller, checked chunk by chunk.

    Raises:
        ValueError: the view is not of the file's size.
        CorruptCheckpointError: as for ``read_file``; the view then holds bytes that must not be used.
        OSError: as for ``read_file``.
    """
    target = byte_view(view)
    if target.nbytes != record.size_bytes:
        raise ValueError(f"{record.name} has {record.size_bytes} bytes, the memory for it {target.nbytes}")
    FileReader(stores, ref, record).read_into(target)


def verify(stores: Sequence[Store], ref: CheckpointRef) -> Manifest:
    """Read every byte of a checkpoint and check it; holds one chunk in memory.

    Args:
        stores: those that may hold it, nearest first; it is whole when each chunk is whole in one of them.
        ref: the checkpoint.

    Raises:
        CheckpointNotFoundError: there is no such checkpoint.
        CorruptCheckpointError: the first thing that is wrong.
        OSError: a store cannot be read, and no other has what was sought there.
    """
    manifest = _nearest_manifest(stores, ref)
    for record in manifest.files:
        reader = FileReader(stores, ref, record)
        buffer = memoryview(bytearray(min(record.chunk_bytes, record.size_bytes)))
        for number, (_, length_bytes) in enumerate(iter_chunks(record.size_bytes, record.chunk_bytes)):
            reader.read_chunk(number, buffer[:length_bytes])
    return manifest


def digest_file(store: Store, key: str) -> tuple[int, str]:
    """Size in bytes of any file, and xxh3_128 over the digests of its chunks.

    Raises:
        OSError: it is not there, or the store cannot be read.
    """
    size_bytes = store.size(key)
    buffer = memoryview(bytearray(min(size_bytes, CHUNK_BYTES)))
    digests = []
    for offset_bytes, length in iter_chunks(size_bytes):
        store.read_into(key, offset_bytes, buffer[:length])
        digests.append(digest(buffer[:length]))
    return size_bytes, digest("".join(digests).encode("ascii"))


def _nearest_manifest(stores: Sequence[Store], ref: CheckpointRef) -> Manifest:
    errors: list[Exception] = []
    for store in stores:
        try:
            return read_manifest(store, ref)
        except (OSError, CorruptCheckpointError) as error:
            errors.append(error)
    # absence says least: a store that could not be asked, or holds it damaged, says more
    raise next((error for error in errors if not isinstance(error, CheckpointNotFoundError)), errors[0])


@dataclass(frozen=True)
class _Problem:
    """Why a store did not give what it should hold.

    Attributes:
        store: the store.
        text: what is wrong, for messages.
        error: what was raised there, None when bytes came and were not those that were saved.
    """

    store: Store
    text: str
    error: Exception | None = None

    @property
    def is_damage(self) -> bool:
        """False when the system refused: the bytes may be there."""
        return self.error is None or isinstance(self.error, FileNotFoundError | EOFError)


class FileReader:
    """One file of a checkpoint, each chunk from the nearest store that has it as it was saved.

    Args:
        stores: those that may hold it, nearest first.
        ref: the checkpoint.
        record: the file, from the checkpoint's manifest.

    Raises:
        CorruptCheckpointError: no store has such a file of that size.
        OSError: a store cannot be read, and no other has it.
    """

    def __init__(self, stores: Sequence[Store], ref: CheckpointRef, record: FileRecord) -> None:
        self._ref, self._record, self._key = ref, record, join_key(ref.path, record.name)
        self._problems: list[_Problem] = []
        self._stores: list[Store] = []
        for store in stores:
            problem = self._check_size(store)
            if problem is None:
                self._stores.append(store)
            else:
                self._problems.append(problem)
        self._settle(self._problems, found=bool(self._stores))

    def read_into(self, view: memoryview) -> None:
        """Fill ``view``, of the file's size.

        Raises:
            CorruptCheckpointError: see `read_chunk`.
            OSError: see `read_chunk`.
        """
        for number, (offset_bytes, length_bytes) in enumerate(
            iter_chunks(self._record.size_bytes, self._record.chunk_bytes)
        ):
            self.read_chunk(number, view[offset_bytes : offset_bytes + length_bytes])

    def read_chunk(self, number: int, view: memoryview) -> None:
        """Fill ``view`` with one chunk.

        Raises:
            CorruptCheckpointError: no store has it as it was saved; the view holds bytes that must not be used.
            OSError: a store cannot be read, and no other has it.
        """
        problems: list[_Problem] = []
        for store in self._stores:
            problem = self._try_chunk(store, number, view)
            if problem is None:
                self._settle(problems, found=True)
                return
            problems.append(problem)
        self._settle([*self._problems, *problems], found=False)

    def _check_size(self, store: Store) -> _Problem | None:
        try:
            found = store.size(self._key)
        except FileNotFoundError as error:
            return _Problem(store, "it is missing", error)
        except OSError as error:
            return _Problem(store, f"it cannot be looked for: {error}", error)
        if found != self._record.size_bytes:
            return _Problem(store, f"it has {found} bytes, the manifest says {self._record.size_bytes}")
        return None

    def _try_chunk(self, store: Store, number: int, view: memoryview) -> _Problem | None:
        try:
            store.read_into(self._key, number * self._record.chunk_bytes, view)
        except (FileNotFoundError, EOFError) as error:
            return _Problem(store, f"chunk {number} is missing", error)
        except OSError as error:
            return _Problem(store, f"chunk {number} cannot be read: {error}", error)
        found, expected, algorithm = digest(view), self._record.digests[number], self._record.algorithm
        if found != expected:
            num_chunks = len(self._record.digests)
            text = f"chunk {number} of {num_chunks} was altered ({algorithm} {found}, saved {expected})"
            return _Problem(store, text)
        return None

    def _settle(self, problems: Sequence[_Problem], *, found: bool) -> None:
        """Report what was wrong in stores before the one that had it, or raise when none had."""
        if found:
            for problem in problems:
                path = problem.store.locate(self._key)
                _log.warning("%s is not used: %s. Another copy is.", path, problem.text)
            return
        for problem in problems:
            if not problem.is_damage and problem.error is not None:
                raise problem.error
        several = len(problems) > 1
        text = "; ".join(f"in {problem.store.url} {problem.text}" if several else problem.text for problem in problems)
        raise CorruptCheckpointError(
            f"{self._record.name} of the checkpoint {self._ref.path} is damaged: {text}. "
            "It is not used; resume from an older one.",
            path=problems[0].store.locate(self._key),
        ) from problems[0].error
