"""Stores around another store, for what no real one can be made to do: fail at a chosen operation, or take its time."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Collection
from typing import Any

from resume_core.storage import Sink, Store

WRITES = ("create", "put", "open_sink", "write_at", "close", "delete", "delete_tree", "delete_empty")


class Faults:
    """Counts operations and does something bad at the n-th, from 0; raises unless told otherwise.

    Args:
        fail_at: number of the operation; none for a negative one.
        action: what happens; by default ``error`` is raised.
        error: an exception, "disk full" by default.
        lasting: every later operation fails as well.
    """

    def __init__(
        self,
        fail_at: int,
        action: Callable[[], None] | None = None,
        *,
        error: BaseException | None = None,
        lasting: bool = False,
    ) -> None:
        self.num_operations, self.fail_at, self.failed = 0, fail_at, ""
        self.action, self.lasting = action or self._raise, lasting
        self.error = error or OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def step(self, name: str) -> None:
        if self.reached(name):
            self.action()

    def reached(self, name: str) -> bool:
        number = self.num_operations
        self.num_operations += 1
        bad = number == self.fail_at or (self.lasting and 0 <= self.fail_at < number)
        if bad:
            self.failed = name
        return bad

    def _raise(self) -> None:
        raise self.error


class Around(Store):
    """Every operation of another store, with something before or after it."""

    def __init__(self, inner: Store) -> None:
        self.inner, self.url = inner, inner.url

    def around(self, name: str, work: Callable[..., Any], *args: Any) -> Any:
        return work(*args)

    def _do(self, name: str, *args: Any) -> Any:
        return self.around(name, getattr(self.inner, name), *args)

    def create(self, key, data):
        return self._do("create", key, data)

    def put(self, key, data):
        self._do("put", key, data)

    def open_sink(self, key, size_bytes):
        return _SinkAround(self, self._do("open_sink", key, size_bytes), size_bytes)

    def read(self, key):
        return self._do("read", key)

    def size(self, key):
        return self._do("size", key)

    def read_into(self, key, offset_bytes, view):
        self._do("read_into", key, offset_bytes, view)

    def list(self, prefix):
        return self._do("list", prefix)

    def exists(self, key):
        return self._do("exists", key)

    def delete(self, key):
        self._do("delete", key)

    def delete_tree(self, prefix):
        self._do("delete_tree", prefix)

    def delete_empty(self, prefix):
        self._do("delete_empty", prefix)


class _SinkAround(Sink):
    def __init__(self, store: Around, inner: Sink, size_bytes: int) -> None:
        super().__init__(f"a file in {store.url}", size_bytes)
        self._store, self._inner = store, inner

    def _write(self, offset_bytes, data):
        self._store.around("write_at", self._inner.write_at, offset_bytes, data)

    def _finish(self):
        self._store.around("close", self._inner.__exit__, None, None, None)

    def _abort(self):
        self._inner.__exit__(RuntimeError, RuntimeError(), None)


class FaultyStore(Around):
    """One operation fails: before it takes effect, ``late`` after it did, or ``halfway`` through what it writes."""

    def __init__(self, inner: Store, faults: Faults, late: bool = False, *, halfway: bool = False) -> None:
        super().__init__(inner)
        self.faults, self.late, self.halfway = faults, late, halfway

    def around(self, name: str, work: Callable[..., Any], *args: Any) -> Any:
        # a file in which half was written is closed by nobody: it is aborted, or its process is gone
        is_late = self.late and name not in ("open_sink", "write_at", "close")
        if not is_late and self.faults.reached(name):
            if self.halfway and name == "write_at":
                offset_bytes, data = args
                work(offset_bytes, data[: len(data) // 2])
            self.faults.action()
        result = work(*args)
        if is_late:
            self.faults.step(name)
        return result


class HeldStore(Around):
    """Takes as long as it is told.

    Args:
        inner: the store.
        gate: each of ``operations`` waits for it to be set; `arrived` tells that one does.
        operations: names of methods, with ``write_at`` and ``close`` of a file that is written.
    """

    def __init__(self, inner: Store, *, gate: threading.Event, operations: Collection[str]) -> None:
        super().__init__(inner)
        self.gate, self.operations = gate, operations
        self.arrived = threading.Event()

    def around(self, name: str, work: Callable[..., Any], *args: Any) -> Any:
        if name in self.operations:
            self.arrived.set()
            self.gate.wait()
        return work(*args)
