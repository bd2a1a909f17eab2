"""What a store can do. Everything above works through these few operations and sees only keys and bytes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from types import TracebackType
from typing import TypeVar

from resume_core.errors import CorruptCheckpointError
from resume_core.storage.digest import BytesLike, byte_view
from resume_core.storage.paths import validate_key

__all__ = ["MAX_READ_BYTES", "Names", "OpenFile", "Sink", "Store", "Survey", "refuse_large", "scatter"]

_T = TypeVar("_T")

MAX_READ_BYTES = 256 << 20
"""Most that ``Store.read`` takes into memory: the manifest of a checkpoint of 80 TiB."""

Names = list[str]
"""What ``Store.list`` returns; inside these classes ``list`` is the method."""

Survey = dict[str, dict[str, str]]
"""What ``Store.survey`` returns: of each folder the names in it, each with the mark of its content or ``""``."""


def refuse_large(path: str, size_bytes: int) -> None:
    """Refuse a file that no ``Store.read`` is for, before memory for it is taken.

    Raises:
        CorruptCheckpointError: it is larger than any small file of ours.
    """
    if size_bytes > MAX_READ_BYTES:
        raise CorruptCheckpointError(
            f"{path} has {size_bytes} bytes, no file of its kind has more than {MAX_READ_BYTES}: it is not ours, or "
            "it was altered. Nothing in it is used.",
            path=path,
        )


def scatter(source: memoryview, views: Sequence[memoryview]) -> None:
    """Copy ``source`` into ``views``, one after the other; together they have its size."""
    start = 0
    for view in views:
        view[:] = source[start : start + view.nbytes]
        start += view.nbytes


class Sink(ABC):
    """A file being written. Use it as a context manager.

    A normal exit makes the file durable under its key; an exception, of whatever kind, leaves the key as it was.
    Every byte must have been written once by then. The memory that was written from stays unchanged until the block is
    left: it may still be on its way.

    Attributes:
        is_done_with_memory: whether it may be changed as soon as `write_at` returns.
    """

    is_done_with_memory: bool = False

    def __init__(self, path: str, size_bytes: int) -> None:
        self._path = path
        self._size_bytes = size_bytes
        self._written_bytes = 0

    def write_at(self, offset_bytes: int, view: BytesLike) -> None:
        """Write all of ``view`` at ``offset_bytes``. Ranges may come in any order and must not overlap.

        Raises:
            ValueError: the range lies outside the size the sink was opened with.
            OSError: the store refused; leave the ``with`` block to abort.
        """
        data = byte_view(view)
        if offset_bytes < 0 or offset_bytes + data.nbytes > self._size_bytes:
            raise ValueError(
                f"{self._path}: bytes {offset_bytes} to {offset_bytes + data.nbytes} lie outside the "
                f"{self._size_bytes} bytes the file was opened for"
            )
        self._write(offset_bytes, data)
        self._written_bytes += data.nbytes

    def __enter__(self) -> Sink:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._abort()
            return
        try:
            self._require_whole()
            self._finish()
        except BaseException:
            self._abort()
            raise

    def _require_whole(self) -> None:
        if self._written_bytes != self._size_bytes:
            raise ValueError(f"{self._path}: {self._written_bytes} of {self._size_bytes} bytes were written")

    @abstractmethod
    def _write(self, offset_bytes: int, data: memoryview) -> None:
        """Take ``data``, whose memory stays as it is until the sink is closed."""

    @abstractmethod
    def _finish(self) -> None:
        """Make the file durable and visible under its key."""

    @abstractmethod
    def _abort(self) -> None:
        """Drop what was written; must not raise and may come after a ``_finish`` that failed."""


class OpenFile:
    """A file being read, from one place after the other, by one thread. Use it as a context manager.

    Args:
        store: where it lies.
        key: the file; that it is missing is found out by the first read.
    """

    def __init__(self, store: Store, key: str) -> None:
        self._store, self._key = store, key

    def read_scattered(self, offset_bytes: int, views: Sequence[memoryview]) -> None:
        """See ``Store.read_scattered``."""
        self._store.read_scattered(self._key, offset_bytes, views)

    def __enter__(self) -> OpenFile:
        return self

    def __exit__(self, *error: object) -> None:
        return


class Store(ABC):
    """One root that holds a run: a local directory, a bucket's prefix, memory.

    Keys are relative paths with ``/``; a prefix is a key or ``""`` for the root. Every method raises ``ValueError``
    for a key that is absolute or leaves the root, and lets ``OSError`` of the system through with its type.
    Methods may be called from several threads and processes.

    Attributes:
        url: the root, as messages show it: without credentials.
        num_parallel_reads: how many reads at once make a large file come fastest.
        reads_ahead: whether it comes faster yet when each of them goes on where it was, in one `OpenFile`.
        num_parallel_requests: how many at once make many small files come fastest; 1 where asking takes no time.
        late_writes: whether a write that failed may still take effect afterwards, as a request can that is on its way.
    """

    url: str
    num_parallel_reads: int = 4
    reads_ahead: bool = False
    num_parallel_requests: int = 1
    late_writes: bool = False

    def is_lost(self, error: OSError) -> bool:
        """Whether an error of reading says that the bytes are lost, rather than that they are out of reach."""
        return False

    def locate(self, key: str) -> str:
        """Where ``key`` lies, for messages."""
        return f"{self.url}/{key}" if key else self.url

    def hurry(self) -> None:
        """Somebody waits for an answer: where nothing was ever reached, as at a wrong address, give up in seconds."""
        return

    @abstractmethod
    def create(self, key: str, data: bytes) -> bool:
        """Make a file that does not exist yet, whole and durable.

        Returns:
            True if this call made it, False if it existed, which is left as it was. Of several callers at once one
            gets True, where the store can tell (see the implementation).
        """

    @abstractmethod
    def put(self, key: str, data: bytes) -> None:
        """Write a file whole and durable, in place of one that exists. Readers see the old or the new, nothing else."""

    @abstractmethod
    def open_sink(self, key: str, size_bytes: int) -> Sink:
        """Open a large file for writing; see ``Sink``."""

    @abstractmethod
    def read(self, key: str) -> bytes:
        """All bytes of a small file.

        Raises:
            FileNotFoundError: there is no such file.
            CorruptCheckpointError: it has more than `MAX_READ_BYTES`.
        """

    def read_as(self, key: str, parse: Callable[[bytes], _T], how: str) -> _T:
        """What ``parse`` makes of a small file; a `Glance` asks it once, as long as the content is the same.

        Args:
            key: the file.
            parse: makes something of its bytes.
            how: a name for that; under one name a file is always parsed alike.

        Raises:
            FileNotFoundError: there is no such file.
        """
        return parse(self.read(key))

    def read_ahead(self, keys: Sequence[str], parse: Callable[[str], Mapping[str, Callable[[bytes], object]]]) -> int:
        """Say which small files `read_as` is going to be called for. Only a `Glance` makes use of that.

        Args:
            keys: of files that may be there.
            parse: gives, for each key, what parses it, by name; for each name as `read_as` takes it.

        Returns:
            How many results are at hand now.
        """
        return 0

    def mark(self, key: str) -> str:
        """What changes when the content of a file does; ``""`` where the store cannot say that sooner than read it.

        Raises:
            FileNotFoundError: there is no such file.
        """
        return ""

    @abstractmethod
    def size(self, key: str) -> int:
        """Size of a file in bytes.

        Raises:
            FileNotFoundError: there is no such file.
        """

    @abstractmethod
    def read_into(self, key: str, offset_bytes: int, view: memoryview | bytearray) -> None:
        """Fill all of ``view`` with the bytes of a file from ``offset_bytes`` on.

        Raises:
            FileNotFoundError: there is no such file.
            EOFError: the file ends before the view is full.
        """

    def read_scattered(self, key: str, offset_bytes: int, views: Sequence[memoryview]) -> None:
        """Fill ``views``, one after the other, with the bytes of a file from ``offset_bytes`` on.

        Args:
            key: the file.
            offset_bytes: where the bytes of the first view begin.
            views: flat, of unsigned bytes, writable.

        Raises:
            FileNotFoundError: there is no such file.
            EOFError: the file ends before the views are full.
        """
        if len(views) == 1:
            self.read_into(key, offset_bytes, views[0])
            return
        buffer = memoryview(bytearray(sum(view.nbytes for view in views)))
        self.read_into(key, offset_bytes, buffer)
        scatter(buffer, views)

    def open_file(self, key: str) -> OpenFile:
        """Open a large file for reading; see ``OpenFile``."""
        return OpenFile(self, key)

    @abstractmethod
    def list(self, prefix: str) -> Names:
        """Sorted names of the files and folders directly under ``prefix``, always fresh; [] if there are none."""

    def survey(self, prefix: str) -> Survey:
        """What ``list`` gives for ``prefix``, and for the folders below it where one request tells that too.

        A mark changes when the content of the file does; ``""`` where the store does not say, and for folders.
        """
        return {prefix: dict.fromkeys(self.list(prefix), "")}

    def look_again(self, prefix: str) -> None:
        """What was listed at and below ``prefix`` may have changed; for a store that remembers it."""
        return

    @abstractmethod
    def exists(self, key: str) -> bool:
        """Whether there is a file (not a folder) of that name."""

    @abstractmethod
    def delete(self, key: str) -> None:
        """Delete a file; one that is missing is fine."""

    def recycle(self, key: str) -> None:
        """Delete a file of a checkpoint that is committed no more; its space may be kept for the next of its name."""
        self.delete(key)

    def release(self) -> None:
        """Nothing more is going to be written for now: give up the space that `recycle` has kept."""
        return

    @abstractmethod
    def delete_tree(self, prefix: str) -> None:
        """Delete everything under ``prefix``, whoever wrote it; missing is fine. The root itself stays."""

    @abstractmethod
    def delete_empty(self, prefix: str) -> None:
        """Delete the folder ``prefix`` if nothing is in it; otherwise, and where stores have no folders, do nothing."""

    def abandon_uploads(self, folders: Collection[str]) -> int:
        """Drop every unfinished upload below ``folders``, which no listing shows and which costs space.

        Only for what no living process writes: an upload that is dropped cannot be finished.

        Returns:
            How many there were; 0 where there is no such thing.
        """
        for folder in folders:
            validate_key(folder)
        return 0
