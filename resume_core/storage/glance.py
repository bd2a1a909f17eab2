"""A store as it looks during one operation: each folder is listed once, and each small file read once.

What the listing of its folder does not name is not there, and costs no request. Every operation sees anew that a file
is there, so what was deleted or thinned is gone; but content that the store marks as the one that was read before (an
ETag, or when and where a local file was changed last) is not read again. Files that commit or claim something never
change while they are there.

Of a file that is parsed, what came of it is remembered, and its bytes only for a while: the manifests of thousands of
checkpoints would fill the memory, but the newest, read last, is mostly parsed once more in another way.
"""

from __future__ import annotations

import errno
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NoReturn, TypeVar

from resume_core.errors import CorruptCheckpointError
from resume_core.storage.brief import Brief
from resume_core.storage.interface import Names, Sink, Store
from resume_core.storage.manifest import CheckpointRef
from resume_core.storage.parallel import run_all

__all__ = ["Glance", "Memo"]

_MEMO_BYTES, _RECENT_BYTES = 64 << 20, 1 << 20
_REF_BYTES, _BRIEF_BYTES, _VALUE_BYTES = 500, 2000, 200  # about what they take in memory, a metric's value the last
_SEEN = "seen"  # by this glance, so that no mark is needed to know it again
_T = TypeVar("_T")


class Memo:
    """What was read, by place and mark; what was not asked for longest is forgotten first.

    Args:
        max_bytes: about what it may take in memory.
    """

    def __init__(self, max_bytes: int = _MEMO_BYTES) -> None:
        self._max_bytes = max_bytes
        self._size_bytes = 0
        self._contents: OrderedDict[tuple[str, str], tuple[Any, int]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, place: str, mark: str) -> Any:
        """What was read there, None when nothing was under that mark."""
        with self._lock:
            if (place, mark) not in self._contents:
                return None
            self._contents.move_to_end((place, mark))
            return self._contents[place, mark][0]

    def keep(self, place: str, mark: str, content: object, size_bytes: int) -> None:
        """Remember what was read; what has no mark cannot be known again, and what is too large would oust all else."""
        if not mark or size_bytes > self._max_bytes:
            return
        with self._lock:
            self._size_bytes += size_bytes - self._contents.pop((place, mark), (None, 0))[1]
            self._contents[place, mark] = content, size_bytes
            while self._size_bytes > self._max_bytes:
                self._size_bytes -= self._contents.popitem(last=False)[1][1]


class Glance(Store):
    """Another store, for one operation in one thread. Writing goes through, and ends what was remembered.

    Args:
        inner: the store.
        memo: what earlier operations have read.
    """

    def __init__(self, inner: Store, memo: Memo) -> None:
        self.inner, self._memo = inner, memo
        self.url, self.late_writes = inner.url, inner.late_writes
        self.num_parallel_reads, self.num_parallel_requests = inner.num_parallel_reads, inner.num_parallel_requests
        self.reads_ahead = inner.reads_ahead
        self._folders: dict[str, Mapping[str, str]] = {}
        self._contents: dict[str, bytes] = {}
        self._parsed: dict[str, dict[str, Any]] = {}  # by key, then by the name of the way
        self._recent = Memo(_RECENT_BYTES)

    def locate(self, key: str) -> str:
        """See ``Store.locate``."""
        return self.inner.locate(key)

    def is_lost(self, error: OSError) -> bool:
        """See ``Store.is_lost``."""
        return self.inner.is_lost(error)

    def list(self, prefix: str) -> Names:
        """As it was at the first look."""
        return sorted(self._marks(prefix))

    def look_again(self, prefix: str) -> None:
        """See ``Store.look_again``."""
        below = f"{prefix}/"
        self._folders = {
            folder: marks
            for folder, marks in self._folders.items()
            if folder != prefix and not folder.startswith(below)
        }

    def exists(self, key: str) -> bool:
        """As it was at the first look."""
        mark = self._mark(key)
        is_known = mark != "" or key in self._contents or key in self._parsed
        return mark is not None and (is_known or self.inner.exists(key))

    def read(self, key: str) -> bytes:
        """See ``Store.read``; once. Content that was read before is known again where the folder was listed first."""
        if key not in self._contents:
            mark, place = self._known_mark(key), self.locate(key)
            known = self._memo.get(place, mark)
            self._contents[key] = self.inner.read(key) if known is None else known
            self._memo.keep(place, mark, self._contents[key], len(self._contents[key]))
        return self._contents[key]

    def read_as(self, key: str, parse: Callable[[bytes], _T], how: str) -> _T:
        """See ``Store.read_as``."""
        known = self._parsed.get(key, {})
        if how not in known:
            value = self._read_as(key, parse, how)
            known = self._parsed.setdefault(key, {})
            known[how] = value
        found: _T = known[how]
        return found

    def _read_as(self, key: str, parse: Callable[[bytes], Any], how: str) -> Any:
        mark, place = self._known_mark(key), f"{how} of {self.locate(key)}"
        found = self._memo.get(place, mark)
        if found is None:
            data = self._contents.get(key) or self._recent.get(key, _SEEN) or self.inner.read(key)
            self._recent.keep(key, _SEEN, data, len(data))
            found = parse(data)
            self._memo.keep(place, mark, found, _size_bytes(found, len(data)))
        return found

    def read_ahead(self, keys: Sequence[str], parse: Callable[[str], Mapping[str, Callable[[bytes], object]]]) -> int:
        """See ``Store.read_ahead``. What cannot be read is met by whoever asks for it."""
        if self.num_parallel_requests == 1:
            return 0
        found: dict[tuple[str, str], Any] = {}

        def read(key: str) -> None:
            for how, act in parse(key).items():
                with suppress(OSError, CorruptCheckpointError):
                    found[key, how] = self._read_as(key, act, how)

        waiting = [key for key in keys if key not in self._parsed and self._mark(key) is not None]
        run_all((partial(read, key) for key in waiting), self.num_parallel_requests)
        for (key, how), value in found.items():
            self._parsed.setdefault(key, {})[how] = value
        return len(found)

    def mark(self, key: str) -> str:
        """See ``Store.mark``."""
        return self._known_mark(key)

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
        self._recent = Memo(_RECENT_BYTES)
        return self.inner

    def _mark(self, key: str) -> str | None:
        """The mark in the listing of a file, None when it is not there; ``""`` when only a look at it can tell."""
        folder, _, name = key.rpartition("/")
        return self._folders[folder].get(name) if folder in self._folders else ""

    def _known_mark(self, key: str) -> str:
        """The mark of a file that is there, ``""`` where there is none.

        Raises:
            FileNotFoundError: it is not there.
        """
        mark = self._mark(key)
        return self._absent(key) if mark is None else mark or self.inner.mark(key)

    def _absent(self, key: str) -> NoReturn:
        raise FileNotFoundError(errno.ENOENT, f"{self.locate(key)}: no such file")

    def _marks(self, folder: str) -> Mapping[str, str]:
        if folder not in self._folders:
            # of the root a list: everything below it is the whole run
            found = self.inner.survey(folder) if folder else {"": dict.fromkeys(self.inner.list(""), "")}
            for name, marks in found.items():
                self._folders.setdefault(name, marks)  # what was seen first holds
        return self._folders[folder]


def _size_bytes(found: object, num_read: int) -> int:
    """About what it takes in memory."""
    if isinstance(found, CheckpointRef):
        return _REF_BYTES
    if isinstance(found, Brief):
        return _BRIEF_BYTES + _VALUE_BYTES * (len(found.sizes) + found.num_metrics)
    return 4 * num_read  # objects take more room than their text
