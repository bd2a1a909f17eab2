"""A store as it looks during one operation: each folder is listed once, and each small file read once.

What the listing of its folder does not name is not there, and costs no request. Every operation sees anew that a file
is there, so what was deleted or thinned is gone; but content that the store marks as the one that was read before (an
ETag) is not read again. Files that commit or claim something never change while they are there.
"""

from __future__ import annotations

import errno
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from resume_core.storage.interface import Names, Sink, Store

__all__ = ["Glance", "Memo"]

_MEMO_BYTES = 32 << 20
_T = TypeVar("_T")


class Memo:
    """Small files that were read, by place and mark; those not asked for longest are forgotten first."""

    def __init__(self, max_bytes: int = _MEMO_BYTES) -> None:
        self._max_bytes = max_bytes
        self._size_bytes = 0
        self._contents: OrderedDict[tuple[str, str], bytes] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, place: str, mark: str) -> bytes | None:
        """What was read there, None when nothing was under that mark."""
        with self._lock:
            if (place, mark) not in self._contents:
                return None
            self._contents.move_to_end((place, mark))
            return self._contents[place, mark]

    def keep(self, place: str, mark: str, content: bytes) -> None:
        """Remember a file; one without a mark cannot be known again."""
        if not mark:
            return
        with self._lock:
            self._size_bytes += len(content) - len(self._contents.pop((place, mark), b""))
            self._contents[place, mark] = content
            while self._size_bytes > self._max_bytes:
                self._size_bytes -= len(self._contents.popitem(last=False)[1])


class Glance(Store):
    """Another store, for one operation in one thread. Writing goes through, and ends what was remembered.

    Args:
        inner: the store.
        memo: what earlier operations have read.
    """

    def __init__(self, inner: Store, memo: Memo) -> None:
        self.inner, self._memo = inner, memo
        self.url, self.num_parallel_reads, self.late_writes = inner.url, inner.num_parallel_reads, inner.late_writes
        self._folders: dict[str, Mapping[str, str]] = {}
        self._contents: dict[str, bytes] = {}
        self._parsed: dict[str, Any] = {}

    def locate(self, key: str) -> str:
        """See ``Store.locate``."""
        return self.inner.locate(key)

    def is_lost(self, error: OSError) -> bool:
        """See ``Store.is_lost``."""
        return self.inner.is_lost(error)

    def list(self, prefix: str) -> Names:
        """As it was at the first look."""
        return sorted(self._marks(prefix))

    def exists(self, key: str) -> bool:
        """As it was at the first look."""
        mark = self._mark(key)
        return mark is not None and (mark != "" or key in self._contents or self.inner.exists(key))

    def read(self, key: str) -> bytes:
        """See ``Store.read``; once. Content that was read before is known again where the folder was listed first."""
        mark = self._mark(key)
        if mark is None:
            raise FileNotFoundError(errno.ENOENT, f"{self.locate(key)}: no such file")
        if key not in self._contents:
            known = self._memo.get(self.locate(key), mark)
            self._contents[key] = self.inner.read(key) if known is None else known
            self._memo.keep(self.locate(key), mark, self._contents[key])
        return self._contents[key]

    def read_as(self, key: str, parse: Callable[[bytes], _T]) -> _T:
        """See ``Store.read_as``. A key is always parsed in the same way."""
        if key not in self._parsed:
            self._parsed[key] = parse(self.read(key))
        found: _T = self._parsed[key]
        return found

    def size(self, key: str) -> int:
        """See ``Store.size``."""
        return self.inner.size(key)

    def read_into(self, key: str, offset_bytes: int, view: memoryview | bytearray) -> None:
        """See ``Store.read_into``."""
        self.inner.read_into(key, offset_bytes, view)

    def create(self, key: str, data: bytes) -> bool:
        """See ``Store.create``."""
        return self._changed().create(key, data)

    def put(self, key: str, data: bytes) -> None:
        """See ``Store.put``."""
        self._changed().put(key, data)

    def open_sink(self, key: str, size_bytes: int) -> Sink:
        """See ``Store.open_sink``."""
        return self._changed().open_sink(key, size_bytes)

    def delete(self, key: str) -> None:
        """See ``Store.delete``."""
        self._changed().delete(key)

    def delete_tree(self, prefix: str) -> None:
        """See ``Store.delete_tree``."""
        self._changed().delete_tree(prefix)

    def delete_empty(self, prefix: str) -> None:
        """See ``Store.delete_empty``."""
        self._changed().delete_empty(prefix)

    def _changed(self) -> Store:
        self._folders.clear()
        self._contents.clear()
        self._parsed.clear()
        return self.inner

    def _mark(self, key: str) -> str | None:
        """The mark of a file, None when it is not there; ``""`` when only a look at the file can tell."""
        folder, _, name = key.rpartition("/")
        return self._folders[folder].get(name) if folder in self._folders else ""

    def _marks(self, folder: str) -> Mapping[str, str]:
        if folder not in self._folders:
            # of the root a list: everything below it is the whole run
            found = self.inner.survey(folder) if folder else {"": dict.fromkeys(self.inner.list(""), "")}
            for name, marks in found.items():
                self._folders.setdefault(name, marks)  # what was seen first holds
        return self._folders[folder]
