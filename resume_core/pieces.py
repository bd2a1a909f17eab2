"""What a folder of the framework's own lacks, in files of ours beside its files.

Each rank writes two files, and waits for no other::

    <folder>/exact_resume/rank-00003.safetensors   tensors of its `Entry`
    <folder>/exact_resume/rank-00003.json          sealed: the entry's text, digests of that file and of those that the
                                                   framework wrote in this process, and which save it was

The sealed one first says that a save has begun, before the framework writes anything, and is put in place again as the
last of all. So a folder whose save was cut off, or into which another was begun, is known for what it is; and ranks
whose files are of different saves are told apart by the mark of the save.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from resume_core.entry import ENTRY, FORMAT, Entry, Incomplete, decode
from resume_core.errors import CorruptCheckpointError, ResumeError
from resume_core.image import Arena, FileSpec, Stager, header_bytes, make_target, parse_header
from resume_core.ranks import Ranks
from resume_core.storage import (
    ALGORITHM,
    Fields,
    Store,
    digest_buffer,
    digest_file,
    open_store,
    rank_file,
    seal,
    unseal,
)

__all__ = ["Pieces", "PieceWriter", "has_pieces", "read_pieces"]

_KIND = "pieces"
_LENGTH_BYTES = 8  # of the field that a safetensors file begins with
_ADVICE = "Nothing was loaded: go on from another folder, or restore this one."
_AGAIN = f"it was altered, or its save was not finished. {_ADVICE}"


@dataclass(frozen=True)
class Pieces:
    """What one rank found beside the files of a framework.

    Attributes:
        save: which save it was, the same for all ranks.
        entry: what the framework's files lack, or why it is not there.
    """

    save: str
    entry: Entry | Incomplete


class PieceWriter:
    """Writes those of one rank.

    Args:
        ranks: those that train together.
    """

    def __init__(self, ranks: Ranks) -> None:
        self._rank, self._size = ranks.rank, ranks.size
        self._stager = Stager(Arena())
        self._record: dict[str, Any] = {}

    def begin(self, folder: str, save: str, entry: Entry | Incomplete) -> None:
        """The framework is about to write into ``folder``, of which nothing counts until `commit`.

        Raises:
            UnsupportedStateError: a value that no checkpoint can hold; names its place. Nothing was written.
            OSError: the folder cannot be written.
        """
        text, tensors = entry.flat() if isinstance(entry, Entry) else ("", {})
        store, name = _store(folder), rank_file(self._rank, ".safetensors")
        self._record = {"rank": self._rank, "world_size": self._size, "save": save, "algorithm": ALGORITHM}
        store.put(rank_file(self._rank, ".json"), seal(_KIND, {**self._record, "is_whole": False}))
        if isinstance(entry, Incomplete):
            self._record["entry"] = entry.encode()
            return
        (image,) = self._stager.stage([FileSpec(name, tensors)])
        image.settle()
        with store.open_sink(name, image.size_bytes) as sink:
            sink.write_at(0, image.buffer)
        self._record["entry"] = {"format": FORMAT, "structure": text}
        self._record["tensors"] = list(digest_buffer(image.buffer))

    def commit(self, folder: str, files: Iterable[str]) -> None:
        """The framework has written: what is there counts.

        Args:
            folder: that of `begin`.
            files: names of what it wrote in this process.

        Raises:
            OSError: the folder cannot be read, or written.
        """
        around = open_store(folder)
        digests = {name: list(digest_file(around, name)) for name in sorted(files)}
        record = seal(_KIND, {**self._record, "is_whole": True, "files": digests})
        _store(folder).put(rank_file(self._rank, ".json"), record)


def _store(folder: str) -> Store:
    return open_store(f"{folder}/{ENTRY}")


def has_pieces(folder: str) -> bool:
    """Whether a save with our files was ever begun in ``folder``."""
    return bool(_store(folder).list(""))


def read_pieces(folder: str, ranks: Ranks) -> Pieces | None:
    """The pieces of this rank, after all that its record vouches for was compared with it.

    Returns:
        None when a save with our files was never begun there.

    Raises:
        CorruptCheckpointError: a file is missing, torn or altered, or the save was not finished.
        ResumeError: it was saved by another number of ranks.
        OSError: the folder cannot be read.
    """
    if not has_pieces(folder):
        return None
    store, name = _store(folder), rank_file(ranks.rank, ".json")
    record = _read_record(store, name, folder, ranks)
    save = record.text("save")
    if not record.value("is_whole"):
        raise CorruptCheckpointError(f"the save into {folder} was not finished. {_ADVICE}", path=folder)
    _compare(open_store(folder), record.mapping("files"))
    raw, path = record.mapping("entry"), store.locate(name)
    if "incomplete" not in raw:
        raw["tensors"] = _read_tensors(store, rank_file(ranks.rank, ".safetensors"), record.value("tensors"))
    return Pieces(save, decode(raw, path))


def _read_record(store: Store, name: str, folder: str, ranks: Ranks) -> Fields:
    try:
        record = unseal(_KIND, store.read(name), store.locate(name))
    except FileNotFoundError as error:
        _refuse_other_world(store, folder, ranks)
        raise CorruptCheckpointError(
            f"{store.locate(name)} is missing: the save was not finished, or was made on some of the processes alone, "
            f"while each has to call it. {_ADVICE}",
            path=folder,
        ) from error
    _refuse_size(record, folder, ranks)
    if record.text("algorithm") != ALGORITHM:
        record.fail(f"its digests are of {record.text('algorithm')!r}, this release knows {ALGORITHM!r}: upgrade")
    return record


def _refuse_other_world(store: Store, folder: str, ranks: Ranks) -> None:
    """Without a file of this rank: was it saved by fewer?"""
    name = rank_file(0, ".json")
    if store.exists(name):
        _refuse_size(unseal(_KIND, store.read(name), store.locate(name)), folder, ranks)


def _refuse_size(record: Fields, folder: str, ranks: Ranks) -> None:
    size = record.count("world_size")
    if size != ranks.size:
        raise ResumeError(
            f"{folder} was saved by {size} processes and {ranks.size} train now: start as many. Nothing was loaded.",
            path=folder,
        )


def _compare(store: Store, files: Mapping[str, Any]) -> None:
    for name, expected in files.items():
        _check_file(store, name, expected)


def _check_file(store: Store, name: str, expected: Any) -> None:
    path = store.locate(name)
    try:
        found = list(digest_file(store, name))
    except FileNotFoundError as error:
        raise CorruptCheckpointError(f"{path} is missing: {_AGAIN}", path=path) from error
    if found != expected:
        raise CorruptCheckpointError(f"{path} is not the file that was saved: {_AGAIN}", path=path)


def _read_tensors(store: Store, name: str, expected: Any) -> Mapping[str, torch.Tensor]:
    _check_file(store, name, expected)
    size_bytes, beginning = store.size(name), bytearray(_LENGTH_BYTES)
    store.read_into(name, 0, beginning)
    beginning = bytearray(header_bytes(beginning))
    store.read_into(name, 0, beginning)
    target = make_target(parse_header(beginning, path=store.locate(name), size_bytes=size_bytes))
    store.read_scattered(name, len(beginning), target.memory)
    return target.tensors
