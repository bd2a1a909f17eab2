"""Reading a committed checkpoint: no byte is handed out whose digest was not checked."""

from __future__ import annotations

from resume_core.errors import CheckpointNotFoundError, CorruptCheckpointError
from resume_core.storage.digest import CHUNK_BYTES, byte_view, digest, iter_chunks
from resume_core.storage.interface import Store
from resume_core.storage.manifest import CheckpointRef, FileRecord, Manifest
from resume_core.storage.paths import MANIFEST_FILE, join_key

__all__ = ["digest_file", "read_file", "read_file_into", "read_manifest", "verify"]


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


def read_file(store: Store, ref: CheckpointRef, record: FileRecord) -> bytearray:
    """All bytes of one file of a checkpoint, checked.

    Args:
        store: the store it lies in.
        ref: the checkpoint.
        record: the file, from the checkpoint's manifest.

    Raises:
        CorruptCheckpointError: a chunk was altered, or the file is missing, too short or too long. Names checkpoint,
            file and chunk.
        OSError: the store cannot be read.
    """
    _check_size(store, ref, record)  # before the memory is allocated: a size is only a claim until then
    buffer = bytearray(record.size_bytes)
    read_file_into(store, ref, record, memoryview(buffer))
    return buffer


def read_file_into(store: Store, ref: CheckpointRef, record: FileRecord, view: memoryview | bytearray) -> None:
    """Read one file into memory of the caller, checked chunk by chunk.

    Raises:
        ValueError: the view is not of the file's size.
        CorruptCheckpointError: as for ``read_file``; the view then holds bytes that must not be used.
        OSError: the store cannot be read.
    """
    target = byte_view(view)
    if target.nbytes != record.size_bytes:
        raise ValueError(f"{record.name} has {record.size_bytes} bytes, the memory for it {target.nbytes}")
    _check_size(store, ref, record)
    for number, (offset_bytes, length_bytes) in enumerate(iter_chunks(record.size_bytes, record.chunk_bytes)):
        _read_chunk(store, ref, record, number, target[offset_bytes : offset_bytes + length_bytes])


def verify(store: Store, ref: CheckpointRef) -> Manifest:
    """Read every byte of a checkpoint and check it; holds one chunk in memory.

    Raises:
        CheckpointNotFoundError: there is no such checkpoint.
        CorruptCheckpointError: the first thing that is wrong.
        OSError: the store cannot be read.
    """
    manifest = read_manifest(store, ref)
    for record in manifest.files:
        _check_size(store, ref, record)
        buffer = memoryview(bytearray(min(record.chunk_bytes, record.size_bytes)))
        for number, (_, length_bytes) in enumerate(iter_chunks(record.size_bytes, record.chunk_bytes)):
            _read_chunk(store, ref, record, number, buffer[:length_bytes])
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


def _check_size(store: Store, ref: CheckpointRef, record: FileRecord) -> None:
    try:
        found = store.size(join_key(ref.path, record.name))
    except FileNotFoundError as error:
        raise _corrupt(store, ref, record, "it is missing") from error
    if found != record.size_bytes:
        raise _corrupt(store, ref, record, f"it has {found} bytes, the manifest says {record.size_bytes}")


def _read_chunk(store: Store, ref: CheckpointRef, record: FileRecord, number: int, view: memoryview) -> None:
    try:
        store.read_into(join_key(ref.path, record.name), number * record.chunk_bytes, view)
    except (FileNotFoundError, EOFError) as error:
        raise _corrupt(store, ref, record, f"chunk {number} is missing") from error
    found, expected = digest(view), record.digests[number]
    if found != expected:
        problem = f"chunk {number} of {len(record.digests)} was altered ({record.algorithm} {found}, saved {expected})"
        raise _corrupt(store, ref, record, problem)


def _corrupt(store: Store, ref: CheckpointRef, record: FileRecord, problem: str) -> CorruptCheckpointError:
    path = store.locate(join_key(ref.path, record.name))
    return CorruptCheckpointError(
        f"{record.name} of the checkpoint {ref.path} is damaged: {problem}. It is not used; resume from an older one.",
        path=path,
    )
