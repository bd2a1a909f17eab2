"""The commit protocol: how the files of all ranks become one checkpoint, or nothing.

One folder per save, never used twice; only the attempt that owns it writes in it::

    rank 0       CheckpointSlots.take(step) -> Slot, which the other ranks are told
    each rank    write_file(...)        its data files, each durable when the call returns
    each rank    write_part()           part-00003.json: its files, sizes and digests; rank 0 needs none of its own
    rank 0       commit(header, ...)    1. every other rank's part is there, for this very folder and world
                                        2. every file that they list is there
                                        3. no newer attempt of the run exists
                                        4. manifest.json, atomically and durably: this is the commit

What a kill, on any rank, leaves behind:

=====================================  =================================================================================
before or within the first write       nothing, or a temporary file
between data files                     a folder without a manifest: it does not exist for readers
after the files, before the part       the same; rank 0 finds the part missing and does not commit
after some parts                       the same
between the checks and the manifest    the same
within the write of the manifest       the same (a temporary, or no object at all), or the whole manifest: committed
after the manifest                     a committed checkpoint; only retention and promotion are undone
=====================================  =================================================================================

A folder without a valid manifest is never read, and retention removes it once a newer attempt runs. Parts of another
folder cannot be mistaken for ours: each names attempt, checkpoint, rank and world size, and ``CheckpointSlots`` never
gives a name out twice, not even for a save that failed. After the commit nobody reads a part. A zombie (an old attempt
that still runs) passes check 3 only until the newer attempt has claimed; what it commits in that last moment lies in
its own folder, beyond the point the newer attempt branched off at, and ``lineage`` does not offer it.

The idea is that of a two-phase commit with the file system as the log; no collective takes part, so it runs in a
background thread.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from resume_core.errors import CorruptCheckpointError, SaveFailedError
from resume_core.storage.digest import CHUNK_BYTES, BytesLike, Digesting, byte_view, iter_chunks
from resume_core.storage.interface import Store
from resume_core.storage.manifest import CheckpointRef, FileRecord, Manifest, Part
from resume_core.storage.manifests import read_manifest
from resume_core.storage.paths import (
    MANIFEST_FILE,
    checkpoint_folder,
    join_key,
    parse_checkpoint_folder,
    parse_rank_file,
    part_file,
)
from resume_core.storage.read import FileReader
from resume_core.storage.sealed import JsonMapping

__all__ = ["CheckpointSlots", "CheckpointWriter", "Slot"]


@dataclass(frozen=True)
class Slot:
    """The place of one save: rank 0 takes it, every rank writes to it. Three plain values, easy to broadcast.

    Args:
        attempt: folder of the attempt.
        name: folder of the checkpoint.
        serial: place among the saves of the attempt.

    Raises:
        ValueError: a folder name that is not one of ours, or a negative serial.
    """

    attempt: str
    name: str
    serial: int

    def __post_init__(self) -> None:
        CheckpointRef(self.attempt, self.name)
        if self.serial < 0:
            raise ValueError(f"{self.serial} is not the serial of a save")

    @property
    def path(self) -> str:
        """``attempt-0002-7f3a/step-000000500``."""
        return join_key(self.attempt, self.name)


class CheckpointSlots:
    """Gives out the places of an attempt's saves. Only rank 0 of the attempt has one, and one only.

    Args:
        store: the store that lineage lives in.
        attempt: folder of the attempt. Names that are in it already count as taken.

    Raises:
        CorruptCheckpointError: the attempt holds a manifest that cannot be read, so that the next serial is unknown.
        OSError: the store cannot be listed.
    """

    def __init__(self, store: Store, attempt: str) -> None:
        self._attempt = attempt
        self._taken = {name for name in store.list(attempt) if parse_checkpoint_folder(name) is not None}
        committed = [name for name in self._taken if store.exists(join_key(attempt, name, MANIFEST_FILE))]
        serials = [read_manifest(store, CheckpointRef(attempt, name)).serial for name in committed]
        self._next_serial = max(serials, default=-1) + 1

    def take(self, step: int) -> Slot:
        """The next place, for a save at ``step``. A step that was used already gets the suffix ``.2``, ``.3``...

        Raises:
            ValueError: a step that no folder can have.
        """
        repeat = 1
        while (name := checkpoint_folder(step, repeat)) in self._taken:
            repeat += 1
        slot = Slot(self._attempt, name, self._next_serial)
        self._taken.add(name)
        self._next_serial += 1
        return slot


class Arrival(Protocol):
    """What is known of a buffer that is filled while it is written."""

    def wait(self, num_bytes: int) -> None:
        """Return when the first ``num_bytes`` are there; RuntimeError when they will not come."""

    def settle(self) -> None:
        """Return when the processor is free again from filling this buffer and others; raises as `wait` does."""


class _AllThere:
    def wait(self, num_bytes: int) -> None:
        pass

    def settle(self) -> None:
        pass


class CheckpointWriter:
    """Writes one rank's share of one checkpoint; on rank 0 it also commits. See the top of the module.

    Args:
        store: where to.
        slot: the place, the same on all ranks.
        rank: this rank.
        world_size: number of ranks that write.

    Raises:
        ValueError: the rank is not in the world.
    """

    def __init__(self, store: Store, slot: Slot, rank: int = 0, world_size: int = 1) -> None:
        if not 0 <= rank < world_size:
            raise ValueError(f"rank {rank} is not in a world of {world_size}")
        self._store = store
        self._slot = slot
        self._rank = rank
        self._world_size = world_size
        self._files: dict[str, FileRecord] = {}
        self._closed = False
        self._ready = False  # the part is written, or may be
        self._is_late = False  # the manifest was asked for, of a store that may write it even when it says no

    def write_file(self, name: str, buffer: BytesLike, arrival: Arrival | None = None) -> FileRecord:
        """Write one file, durably; the digests are taken beside that, of the same memory.

        Args:
            name: one of the files a checkpoint can hold; a ``rank-`` file must be this rank's.
            buffer: its content, contiguous.
            arrival: tells how much of the buffer is there, when it is filled meanwhile.

        Raises:
            ValueError: another rank's file, an unknown name, one that was written already, or the part is written.
            TypeError: the buffer is not contiguous.
            OSError: the store refused. Nothing is left under that name.
            RuntimeError: not all of the buffer came. Nothing is left under that name.
        """
        view = byte_view(buffer)
        self._check_name(name)
        arrival = arrival or _AllThere()
        digesting = Digesting(view, CHUNK_BYTES, arrival.settle)
        with digesting, self._store.open_sink(self._key(name), view.nbytes) as sink:
            for offset_bytes, length_bytes in iter_chunks(view.nbytes, CHUNK_BYTES):
                arrival.wait(offset_bytes + length_bytes)
                sink.write_at(offset_bytes, view[offset_bytes : offset_bytes + length_bytes])
        record = FileRecord(name, view.nbytes, CHUNK_BYTES, digesting.result())
        self._files[name] = record
        return record

    def copy_file(self, source: Store, ref: CheckpointRef, record: FileRecord) -> None:
        """Write one file as it lies in another store, each chunk checked on the way.

        Args:
            source: the other store.
            ref: the checkpoint that it belongs to there.
            record: the file, from that checkpoint.

        Raises:
            ValueError: as for `write_file`.
            CorruptCheckpointError: a chunk is not what was saved. Nothing is left under that name.
            OSError: one of the stores refused. Nothing is left under that name.
        """
        self._check_name(record.name)
        reader = FileReader([source], ref, record)
        with self._store.open_sink(self._key(record.name), record.size_bytes) as sink:
            pages: memoryview | None = None
            chunks = iter_chunks(record.size_bytes, record.chunk_bytes)
            for number, (offset_bytes, length_bytes) in enumerate(chunks):
                if pages is None or not sink.is_done_with_memory:  # whole pages, for O_DIRECT
                    pages = memoryview(mmap.mmap(-1, length_bytes))
                chunk = pages[:length_bytes]
                reader.read_chunk(number, [chunk])
                sink.write_at(offset_bytes, chunk)
        self._files[record.name] = record

    def write_part(self) -> Part:
        """This rank's files are complete: tell rank 0 by its part-manifest. Rank 0 itself, who commits, writes none.

        Raises:
            ValueError: it was written already.
            OSError: the store refused.
        """
        self._check_open()
        part = Part(self._slot.attempt, self._slot.name, self._rank, self._world_size, tuple(self._files.values()))
        self._ready = True
        if self._rank != 0:
            self._store.put(self._key(part_file(self._rank)), part.to_bytes())
        self._closed = True
        return part

    def missing_ranks(self) -> tuple[int, ...]:
        """Other ranks whose part is not there yet. Rank 0 polls this until it is empty, with a deadline of its own.

        Raises:
            OSError: the store cannot be listed.
        """
        return self._without_part(self._store.list(self._slot.path)) if self._world_size > 1 else ()

    def commit(self, header: JsonMapping, *, still_newest: Callable[[], object]) -> Manifest:
        """Commit the checkpoint; rank 0 only.

        Args:
            header: strict JSON that goes into the manifest.
            still_newest: called right before the manifest is written. It raises ``SupersededError`` when a newer
                attempt exists (``Lineage.check_newest``).

        Raises:
            ValueError: called on another rank or before `write_part`, or the header cannot be written as JSON.
            TypeError: the header is not strict JSON.
            SaveFailedError: a part is missing or is not of this save, or a file is gone.
            SupersededError: from ``still_newest``; nothing was committed.
            OSError: the store refused. The checkpoint does not exist, or (when only the reply got lost) is whole.
        """
        if self._rank != 0:
            raise ValueError(f"rank {self._rank} cannot commit, rank 0 does")
        if not self._closed:
            raise ValueError(f"{self._slot.path} cannot be committed before its files are complete")
        files = self._collect()
        manifest = Manifest(self._slot.attempt, self._slot.name, self._slot.serial, self._world_size, files, header)
        data = manifest.to_bytes()
        still_newest()
        self._is_late = self._store.late_writes
        self._store.put(self._key(MANIFEST_FILE), data)
        return manifest

    def discard(self) -> None:
        """Delete what this rank wrote, after a save that failed; frees the space for the next try.

        What cannot be deleted is left to retention, and so is all of it when the checkpoint may be committed, or may
        become so: an error can come after the file is there, as from the sync of its folder, or before, from a request
        that got no answer (``Store.late_writes``). Never call it after ``commit`` returned.
        """
        if self._may_be_committed():
            return
        for name in (part_file(self._rank), *self._files):
            with suppress(OSError):
                self._store.delete(self._key(name))
        with suppress(OSError):
            self._store.delete_empty(self._slot.path)

    def _may_be_committed(self) -> bool:
        if not self._ready:
            return False
        if self._is_late:
            return True
        try:
            # rank 0 commits as soon as it sees the part of this rank, and no other rank hears when
            return self._rank != 0 or self._store.exists(self._key(MANIFEST_FILE))
        except OSError:
            return True

    def _key(self, name: str) -> str:
        return join_key(self._slot.path, name)

    def _check_open(self) -> None:
        if self._closed:
            raise ValueError(f"the part of rank {self._rank} of {self._slot.path} is written already")

    def _check_name(self, name: str) -> None:
        self._check_open()
        FileRecord(name, 0, CHUNK_BYTES, ())  # refuses unknown names before anything is written
        if parse_rank_file(name) not in (None, self._rank):
            raise ValueError(f"rank {self._rank} cannot write {name}")
        if name in self._files:
            raise ValueError(f"{name} of {self._slot.path} is written already")

    def _without_part(self, present: Iterable[str]) -> tuple[int, ...]:
        names = set(present)
        return tuple(rank for rank in range(1, self._world_size) if part_file(rank) not in names)

    def _collect(self) -> tuple[FileRecord, ...]:
        present = set(self._store.list(self._slot.path))
        missing = self._without_part(present)
        if missing:
            raise self._failed(f"the parts of the ranks {_shortened(missing)} of {self._world_size} are missing")
        files = tuple(self._files.values())
        try:
            files += tuple(record for rank in range(1, self._world_size) for record in self._read_part(rank).files)
        except CorruptCheckpointError as error:
            raise self._failed(str(error)) from error
        gone = [record.name for record in files if record.name not in present]
        if gone:
            raise self._failed(f"the files {_shortened(gone)} are gone; was the folder deleted?")
        return files

    def _read_part(self, rank: int) -> Part:
        key = self._key(part_file(rank))
        part = Part.from_bytes(self._store.read(key), path=self._store.locate(key))
        found = (part.attempt, part.checkpoint, part.rank, part.world_size)
        expected = (self._slot.attempt, self._slot.name, rank, self._world_size)
        if found != expected:
            raise self._failed(f"{part_file(rank)} is the part of {found}, not of {expected}")
        return part

    def _failed(self, problem: str) -> SaveFailedError:
        path = self._store.locate(self._slot.path)
        return SaveFailedError(f"{path} was not committed: {problem}. Older checkpoints are intact.", path=path)


def _shortened(values: tuple[int, ...] | list[str]) -> str:
    shown = ", ".join(map(str, values[:8]))
    return shown if len(values) <= 8 else f"{shown} and {len(values) - 8} more"
