"""Reading a committed checkpoint: no byte is handed out whose digest was not checked."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import NoReturn

from resume_core.errors import CorruptCheckpointError
from resume_core.storage.digest import (
    CHUNK_BYTES,
    BytesLike,
    byte_view,
    digest,
    digest_all,
    digest_chunks,
    digest_of,
    iter_chunks,
)
from resume_core.storage.interface import OpenFile, Store, scatter
from resume_core.storage.manifest import CheckpointRef, FileRecord, Manifest
from resume_core.storage.manifests import nearest, read_manifest
from resume_core.storage.parallel import Steps, run_steps
from resume_core.storage.paths import join_key

__all__ = ["FileReader", "digest_buffer", "digest_file", "read_file", "verify"]

_PIECE_BYTES = 1 << 20  # of one read from a disk: it is still in the processor's cache when its digest is taken

_log = logging.getLogger("exact_resume")


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
    return FileReader(stores, ref, record).read()


def verify(stores: Sequence[Store], ref: CheckpointRef) -> Manifest:
    """Read every byte of a checkpoint and check it; holds one chunk for each parallel read in memory.

    Args:
        stores: those that may hold it, nearest first; it is whole when each chunk is whole in one of them.
        ref: the checkpoint.

    Raises:
        CheckpointNotFoundError: there is no such checkpoint.
        CorruptCheckpointError: the first thing that is wrong.
        OSError: a store cannot be read, and no other has what was sought there.
    """
    manifest = nearest(stores, ref, read_manifest)
    for record in manifest.files:
        FileReader(stores, ref, record).verify()
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
    return size_bytes, digest_all(digests)


def digest_buffer(buffer: BytesLike) -> tuple[int, str]:
    """`digest_file` of a file with these bytes."""
    return byte_view(buffer).nbytes, digest_all(digest_chunks(buffer))


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
        error = self.error
        if error is None or isinstance(error, FileNotFoundError | EOFError):
            return True
        return isinstance(error, OSError) and self.store.is_lost(error)


class FileReader:
    """One file of a checkpoint, each chunk from the nearest store that has it as it was saved.

    Args:
        stores: those that may hold it, nearest first. What is farther is asked only when it is needed.
        ref: the checkpoint.
        record: the file, from the checkpoint's manifest.

    Raises:
        CorruptCheckpointError: no store has such a file of that size.
        OSError: a store cannot be read, and no other has it.
    """

    def __init__(self, stores: Sequence[Store], ref: CheckpointRef, record: FileRecord) -> None:
        self._ref, self._record, self._key = ref, record, join_key(ref.path, record.name)
        self._problems: list[_Problem] = []
        self._reported: set[str] = set()
        for place, store in enumerate(stores):
            problem = self._check_size(store)
            if problem is None:
                self._stores = stores[place:]
                break
            self._problems.append(problem)
        else:
            self._fail(self._problems)
        self._report(self._problems)

    @property
    def size_bytes(self) -> int:
        """Of the file: a store has one of that size, so memory for it may be taken."""
        return self._record.size_bytes

    @property
    def chunk_bytes(self) -> int:
        """What each digest covers; the last may cover less."""
        return self._record.chunk_bytes

    def read(self) -> bytearray:
        """All bytes.

        Raises:
            CorruptCheckpointError: no store has a chunk as it was saved.
            OSError: a store cannot be read, and no other has what was sought there.
        """
        buffer = bytearray(self.size_bytes)
        self.read_scattered([memoryview(buffer)])
        return buffer

    def read_beginning(self, length_bytes: int) -> bytearray:
        """The chunks that hold the first ``length_bytes``; all of a file that is not longer.

        Raises:
            CorruptCheckpointError: see `read`.
            OSError: see `read`.
        """
        covered = [length for offset, length in self._spans() if offset < length_bytes]
        buffer = bytearray(sum(covered))
        self._read_chunks(0, _split([memoryview(buffer)], covered))
        return buffer

    def read_scattered(self, views: Sequence[memoryview], beginning: BytesLike = b"", start_bytes: int = 0) -> None:
        """Fill ``views``, one after the other, with what comes from ``start_bytes`` on to the end; chunks in parallel.

        Args:
            views: flat, of unsigned bytes, writable; together as large as that.
            beginning: what `read_beginning` gave, with ``start_bytes`` inside: it is copied, not read again.
            start_bytes: where the bytes of the first view begin.

        Raises:
            CorruptCheckpointError: see `read`; the views then hold bytes that must not be used.
            OSError: see `read`; likewise.
        """
        known = memoryview(beginning)[start_bytes:]
        lengths = [length for offset, length in self._spans() if offset >= len(beginning)]
        groups = _split(views, [known.nbytes, *lengths])
        scatter(known, next(groups))
        self._read_chunks(len(self._record.digests) - len(lengths), groups)

    def verify(self) -> None:
        """Read everything and keep nothing.

        Raises:
            CorruptCheckpointError: see `read`.
            OSError: see `read`.
        """
        own = threading.local()  # one chunk's memory for each thread

        def views_of(number: int) -> list[memoryview]:
            if not hasattr(own, "buffer"):
                own.buffer = memoryview(bytearray(min(self._record.chunk_bytes, self.size_bytes)))
            return [own.buffer[: lengths[number]]]

        lengths = [length for _, length in self._spans()]
        self._read_all(range(len(lengths)), views_of)

    def _spans(self) -> Iterator[tuple[int, int]]:
        return iter_chunks(self._record.size_bytes, self._record.chunk_bytes)

    def _read_chunks(self, first: int, groups: Iterable[list[memoryview]]) -> None:
        all_views = list(groups)
        self._read_all(range(first, first + len(all_views)), lambda number: all_views[number - first])

    def _read_all(self, numbers: range, views_of: Callable[[int], Sequence[memoryview]]) -> None:
        """Chunks in parallel: each thread takes the next one, or a part of the file where the disk reads ahead."""
        store = self._stores[0]
        length = -(-len(numbers) // store.num_parallel_reads) if store.reads_ahead else 1
        parts = [numbers[start : start + length] for start in range(0, len(numbers), max(length, 1))]
        run_steps((self._steps(part, views_of) for part in parts), store.num_parallel_reads)

    def _steps(self, numbers: range, views_of: Callable[[int], Sequence[memoryview]]) -> Steps:
        with _OpenFiles(self._key) as files:
            for number in numbers:
                self._read_chunk(files, number, views_of(number))
                yield

    def read_chunk(self, number: int, views: Sequence[memoryview]) -> None:
        """Fill ``views``, together as large as one chunk, with it.

        Raises:
            CorruptCheckpointError: see `read`.
            OSError: see `read`.
        """
        with _OpenFiles(self._key) as files:
            self._read_chunk(files, number, views)

    def _read_chunk(self, files: _OpenFiles, number: int, views: Sequence[memoryview]) -> None:
        problems: list[_Problem] = []
        for store in self._stores:
            problem = self._try_chunk(store, files, number, views)
            if problem is None:
                self._report(problems)
                return
            problems.append(problem)
        self._fail([*self._problems, *problems])

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

    def _try_chunk(self, store: Store, files: _OpenFiles, number: int, views: Sequence[memoryview]) -> _Problem | None:
        piece_bytes = _PIECE_BYTES if store.reads_ahead else self._record.chunk_bytes
        try:
            found = digest_of(_arriving(files.of(store), number * self._record.chunk_bytes, views, piece_bytes))
        except (FileNotFoundError, EOFError) as error:
            return _Problem(store, f"chunk {number} is missing", error)
        except OSError as error:
            return _Problem(store, f"chunk {number} cannot be read: {error}", error)
        expected, algorithm = self._record.digests[number], self._record.algorithm
        if found != expected:
            num_chunks = len(self._record.digests)
            return _Problem(
                store, f"chunk {number} of {num_chunks} was altered ({algorithm} {found}, saved {expected})"
            )
        return None

    def _report(self, problems: Sequence[_Problem]) -> None:
        """Say why a store is passed over; once for each, as there may be thousands of chunks."""
        for problem in problems:
            if problem.store.url in self._reported:
                continue
            self._reported.add(problem.store.url)
            path = problem.store.locate(self._key)
            _log.warning("%s: %s; the next store that holds the checkpoint is read instead", path, problem.text)

    def _fail(self, problems: Sequence[_Problem]) -> NoReturn:
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


class _OpenFiles(ExitStack):
    """One file in several stores, opened in each that is asked for it, and closed with the block."""

    def __init__(self, key: str) -> None:
        super().__init__()
        self._key = key
        self._files: dict[str, OpenFile] = {}

    def of(self, store: Store) -> OpenFile:
        """The file in ``store``."""
        if store.url not in self._files:
            self._files[store.url] = self.enter_context(store.open_file(self._key))
        return self._files[store.url]


def _arriving(file: OpenFile, offset_bytes: int, views: Sequence[memoryview], piece_bytes: int) -> Iterator[memoryview]:
    """``views``, filled with what comes from ``offset_bytes`` on: each piece when it is there."""
    size_bytes = sum(view.nbytes for view in views)
    for piece in _split(views, [length for _, length in iter_chunks(size_bytes, piece_bytes)]):
        file.read_scattered(offset_bytes, piece)
        offset_bytes += sum(view.nbytes for view in piece)
        yield from piece


def _split(views: Iterable[memoryview], lengths: Iterable[int]) -> Iterator[list[memoryview]]:
    """What ``views`` are when laid one after the other, in groups of ``lengths`` bytes."""
    waiting, rest = iter(views), memoryview(b"")
    for length in lengths:
        group = []
        while length:
            while not rest.nbytes:
                rest = next(waiting)
            group.append(rest[:length])
            length -= group[-1].nbytes
            rest = rest[group[-1].nbytes :]
        yield group
