"""What the storage tests share: a small run, stores that fail, processes that are killed."""

from __future__ import annotations

import os
import signal
import traceback
import warnings
from collections.abc import Callable

from resume_core.policy import Keep
from resume_core.storage import (
    Attempt,
    Brief,
    CheckpointRef,
    CheckpointSlots,
    CheckpointWriter,
    Lineage,
    Manifest,
    Slot,
    Store,
    direct,
    folders,
    local,
    prune,
    rank_file,
    read_file,
    recycled,
    verify,
)
from resume_core.storage.manifests import read_weights_manifest

from .faults import Faults

OS_MODULES = (local, direct, folders, recycled)
"""Those that ask the system for what becomes of files."""

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


def steps_of(refs) -> list[int]:
    return [int(ref.name[5:14]) for ref in refs]


def thinned(run: Run) -> list[Manifest]:
    """What was left of the checkpoints of a run's attempts that were thinned to their weights, newest first."""
    attempts = [attempt.name for attempt in run.lineage.attempts()]
    refs = [ref for name in attempts for ref, found in run.lineage.weights(name) if isinstance(found, Brief)]
    manifests = [read_weights_manifest(run.lineage.tiers.stores[-1], ref) for ref in refs]
    return sorted(manifests, key=lambda manifest: manifest.serial, reverse=True)


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


class FaultyOs:
    """Stands in for ``os`` inside `OS_MODULES`: one system call fails, a write after half its bytes.

    fsync is counted and not made: what a power cut does is not what these tests are about.
    """

    CALLS = ("open", "pwrite", "fsync", "replace", "rename", "truncate", "link", "mkdir", "unlink", "rmdir", "listdir")

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
