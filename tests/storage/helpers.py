"""What the storage tests share: a small run, stores that fail, processes that are killed."""

from __future__ import annotations

import errno
import os
import signal
import traceback
import warnings
from collections.abc import Callable

from resume_core.policy import Keep
from resume_core.storage import (
    Attempt,
    CheckpointRef,
    CheckpointSlots,
    CheckpointWriter,
    Lineage,
    Manifest,
    Sink,
    Slot,
    Store,
    prune,
    rank_file,
    read_file,
    verify,
)

FILES = ("model.safetensors", "training.safetensors", "training.json")


def payload(tag: str, name: str) -> bytes:
    """Content that says which save and which file it belongs to; several chunks where chunks are small."""
    return f"{tag}/{name};".encode() * 12


def write_ranks(store: Store, slot: Slot, tag: str, world_size: int = 2) -> list[CheckpointWriter]:
    """All ranks write their files and parts; returns their writers, rank 0 first."""
    writers = [CheckpointWriter(store, slot, rank, world_size) for rank in range(world_size)]
    for name in FILES:
        writers[0].write_file(name, payload(tag, name))
    for rank, writer in enumerate(writers):
        for suffix in (".safetensors", ".json"):
            name = rank_file(rank, suffix)
            writer.write_file(name, payload(tag, name))
        writer.write_part()
    return writers


def save(store: Store, slot: Slot, tag: str, attempt: Attempt | None = None, world_size: int = 2) -> Manifest:
    """A whole save; with ``attempt`` it looks for newer ones as a session does."""
    writers = write_ranks(store, slot, tag, world_size)

    def check():
        if attempt is not None:
            Lineage(store).check_newest(attempt)

    return writers[0].commit({"tag": tag}, still_newest=check)


class Run:
    """One attempt with its slots, as a session would hold them."""

    def __init__(self, store: Store, restored_from: CheckpointRef | None = None, parent: str | None = None):
        self.store = store
        self.lineage = Lineage(store)
        self.attempt = self.lineage.claim(parent=parent, restored_from=restored_from, info={"host": "a"})
        self.slots = CheckpointSlots(store, self.attempt.name)

    def save(self, step: int, tag: str = "", world_size: int = 2) -> CheckpointRef:
        return save(self.store, self.slots.take(step), tag or f"s{step}", self.attempt, world_size).ref

    def zombie_save(self, step: int) -> CheckpointRef:
        """A save that passed the check for newer attempts before one was claimed."""
        return save(self.store, self.slots.take(step), f"zombie{step}").ref

    def prune(self, last: int = 1):
        return prune(self.lineage, Keep(last=last), self.attempt)


def paths(refs) -> list[str]:
    return [ref.path for ref in refs]


def candidates(store: Store) -> list[CheckpointRef]:
    return list(Lineage(store).candidates())


def load(store: Store, ref: CheckpointRef) -> str:
    """Read and check everything of a checkpoint; returns the tag it was saved with."""
    manifest = verify([store], ref)
    tag = manifest.header["tag"]
    for record in manifest.files:
        assert bytes(read_file([store], ref, record)) == payload(tag, record.name)
    return tag


def tree(store: Store, prefix: str = "") -> list[str]:
    """Every file under ``prefix``."""
    found = []
    for name in store.list(prefix):
        key = f"{prefix}/{name}" if prefix else name
        found += [key] if store.exists(key) else tree(store, key)
    return found


class Faults:
    """Counts operations and does something bad at the n-th (from 0); by default raises "disk full"."""

    def __init__(self, fail_at: int, action: Callable[[], None] | None = None):
        self.num_operations = 0
        self.fail_at = fail_at
        self.action = action or self._raise
        self.failed = ""

    def step(self, name: str) -> None:
        if self.reached(name):
            self.action()

    def reached(self, name: str) -> bool:
        number = self.num_operations
        self.num_operations += 1
        if number == self.fail_at:
            self.failed = name
        return number == self.fail_at

    @staticmethod
    def _raise() -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class FaultyStore(Store):
    """A store of which one operation fails, before or (``late``) after it took effect."""

    def __init__(self, inner: Store, faults: Faults, late: bool = False):
        self.inner = inner
        self.url = inner.url
        self.faults = faults
        self.late = late

    def _do(self, name, *args):
        if not self.late:
            self.faults.step(name)
        result = getattr(self.inner, name)(*args)
        if self.late:
            self.faults.step(name)
        return result

    def create(self, key, data):
        return self._do("create", key, data)

    def put(self, key, data):
        self._do("put", key, data)

    def open_sink(self, key, size_bytes):
        self.faults.step("open_sink")
        return FaultySink(self.inner.open_sink(key, size_bytes), size_bytes, self.faults)

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


class FaultySink(Sink):
    def __init__(self, inner: Sink, size_bytes: int, faults: Faults):
        super().__init__("faulty", size_bytes)
        self.inner = inner
        self.faults = faults

    def _write(self, offset_bytes, data):
        self.faults.step("write_at")
        self.inner.write_at(offset_bytes, data)

    def _finish(self):
        self.faults.step("close")
        self.inner.__exit__(None, None, None)

    def _abort(self):
        self.inner.__exit__(RuntimeError, RuntimeError(), None)


class FaultyOs:
    """Stands in for ``os`` inside ``local.py`` and ``direct.py``: one system call fails, a write after half its bytes.

    fsync is counted and not made: what a power cut does is not what these tests are about.
    """

    CALLS = ("open", "pwrite", "fsync", "replace", "link", "mkdir", "unlink", "rmdir", "listdir")

    def __init__(self, faults: Faults):
        self.faults = faults

    def __getattr__(self, name):
        real = getattr(os, name)
        return (lambda *args: self._call(name, real, *args)) if name in self.CALLS else real

    def _call(self, name, real, *args):
        if self.faults.reached(name):
            if name == "pwrite":
                half = len(args[1]) // 2
                real(args[0], args[1][: half - half % 4096 if half > 4096 else half], args[2])  # O_DIRECT takes blocks
            self.faults.action()
        return None if name == "fsync" else real(*args)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def in_child(work: Callable[[], object]) -> int:
    """Run ``work`` in a forked child; 0 when it came to its end, minus the signal when it was killed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # 3.12 warns when the test runner has threads
        pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
