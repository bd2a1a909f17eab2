"""Processes that are killed at one chosen operation on the disk: every one of a run, one after the other.

`arm` counts what changes a folder (system calls on names and on data) and sends SIGKILL to its own process before the
chosen one, or in its middle: half of the bytes of a write are there, half of the space is taken. What lies on a disk
changes only by these calls, so a kill before each of them and in the middle of each that has one is a kill anywhere.

What is started and killed here are walks (walks.py), of any configuration that a `Session` takes.
"""

from __future__ import annotations

import dataclasses
import json
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import harness
import torch
from walks import Start

from resume_core.errors import ResumeError
from resume_core.ranks import Ranks
from resume_core.storage import direct

ON_NAMES = ("open", "link", "symlink", "rename", "replace", "unlink", "remove", "mkdir", "rmdir", "truncate")
ON_DATA = ("write", "writev", "pwrite", "pwritev", "fsync", "fdatasync", "ftruncate", "posix_fallocate")
TAKING_SPACE = ("open", "link", "mkdir", "pwrite", "fallocate", "fsync")
DIVISIBLE = ("pwrite", "fallocate")
_BLOCK = 4096  # what O_DIRECT writes


@dataclasses.dataclass(frozen=True)
class Death:
    """When a process kills itself, or an operation fails.

    Attributes:
        number: of the operation, from 0.
        halfway: in its middle instead of before it.
        code: the error that it gives instead of a kill.
        lasting: and so does each one after it that takes space.
    """

    number: int
    halfway: bool = False
    code: int | None = None
    lasting: bool = False


class Operations:
    """Those of this process on what lies below ``roots``, in their order."""

    def __init__(self, roots: Iterable[str | os.PathLike[str]], death: Death | None) -> None:
        self.roots = tuple(os.path.realpath(root) for root in roots)
        self.death = death
        self.names: list[str] = []
        self._lock = threading.Lock()

    def concerns(self, name: str, args: tuple[Any, ...], named: dict[str, Any]) -> bool:
        if name == "open" and not args[1] & (os.O_CREAT | os.O_TRUNC):
            return False
        at, path = named.get("dir_fd"), args[0]
        path = os.readlink(f"/proc/self/fd/{path}") if isinstance(path, int) else os.fspath(path)
        path = os.path.join(os.readlink(f"/proc/self/fd/{at}") if at is not None else "", path)
        return path in self.roots or self.holds(os.path.realpath(os.path.dirname(path)))

    def holds(self, folder: str) -> bool:
        """Whether a folder is a root, or lies below one."""
        return any(folder == root or folder.startswith(root + os.sep) for root in self.roots)

    def refuse_others(self, event: str, args: tuple[Any, ...]) -> None:
        """An audit hook: writing in another way than by the calls that are counted would make all of this worthless."""
        if event != "open" or not isinstance(args[1], str) or not {*"wax+"} & {*args[1]}:
            return
        if isinstance(args[0], (str, os.PathLike)) and self.holds(os.path.realpath(os.path.dirname(args[0]))):
            print(f"{args[0]} is written by open(), which is not counted", file=sys.stderr, flush=True)
            os._exit(97)

    def count(self, name: str) -> Death | None:
        """What is to happen at this operation."""
        with self._lock:
            number = len(self.names)
            self.names.append(name)
        death = self.death
        if death is None or number < death.number:
            return None
        goes_on = death.lasting and name in TAKING_SPACE
        return death if number == death.number or goes_on else None

    def wrap(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **named: Any) -> Any:
            if not self.concerns(name, args, named):
                return real(*args, **named)
            death = self.count(name)
            if death is not None:
                if death.halfway:
                    _halve(name, real, args)
                if death.code is not None:
                    raise OSError(death.code, os.strerror(death.code))
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **named)

        return call


def _halve(name: str, real: Callable[..., Any], args: tuple[Any, ...]) -> None:
    if name == "pwrite":
        fd, data, offset_bytes = args
        half = len(data) // 2
        real(fd, data[: half - half % _BLOCK if half > _BLOCK else half], offset_bytes)
    elif name == "fallocate":
        fd, size_bytes = args
        real(fd, size_bytes // 2)


def arm(roots: Iterable[str | os.PathLike[str]], death: Death | None) -> Operations:
    """Count the operations of this process from now on, and die at one of them."""
    operations = Operations(roots, death)
    for name in (*ON_NAMES, *ON_DATA):
        setattr(os, name, operations.wrap(name, getattr(os, name)))
    sys.addaudithook(operations.refuse_others)
    direct._allocate = operations.wrap("fallocate", direct._allocate)
    direct._MIN_BYTES = 1  # small files are written like large ones
    return operations


def _walk(start: Start, rank: int, death: Death | None) -> None:
    torch.set_num_threads(1)
    operations = arm([start.directory, *start.folders], death)
    ranks = Ranks()
    if start.num_ranks > 1:
        store = torch.distributed.FileStore(str(start.root / f"{start.name}.ranks"), start.num_ranks)
        ranks = Ranks(rank, start.num_ranks, store)
    problem = None
    try:
        found = start.take(ranks)
    except (OSError, ResumeError) as error:
        if death is None or death.code is None:
            raise
        found, problem = {}, f"{type(error).__name__}: {error}"
    start.note(rank).write_text(json.dumps({**found, "operations": operations.names, "problem": problem}))


def begin(start: Start, deaths: dict[int, Death] | None = None) -> list[Any]:
    """Start the processes of a start; ``deaths`` says which ranks die, and when."""
    start.root.mkdir(parents=True, exist_ok=True)
    each = range(start.num_ranks)
    made = [harness.CONTEXT.Process(target=_walk, args=(start, r, (deaths or {}).get(r))) for r in each]
    for process in made:
        process.start()
    return made


def finish(start: Start, death: Death | None = None) -> list[dict[str, Any]]:
    """Walk to the end, or to the error that ``death`` leads to on rank 0; what each rank wrote down."""
    processes = begin(start, {} if death is None else {0: death})
    for process in processes:
        process.join(harness.DEADLINE_S)
    codes = [process.exitcode for process in processes]
    for process in processes:
        process.kill()
    assert codes == [0] * start.num_ranks, f"{start.name} ended with {codes}"
    return [json.loads(start.note(rank).read_text()) for rank in range(start.num_ranks)]


def die(start: Start, death: Death, rank: int = 0) -> bool:
    """Walk until one rank dies, and the others with it after a moment. False when it came to its end instead."""
    processes = begin(start, {rank: death})
    processes[rank].join(harness.DEADLINE_S)
    code = processes[rank].exitcode
    if code == -signal.SIGKILL and start.num_ranks > 1:
        time.sleep(0.2)  # what they do in the meantime must do no harm either
    for process in processes:
        if code != 0:
            process.kill()
        process.join(harness.DEADLINE_S)
    assert code in (0, -signal.SIGKILL), f"{start.name} ended with {code}"
    return code != 0


def in_limited_memory(work: Callable[..., Any], *args: Any) -> Any:
    """What ``work`` returns in a process that gets no more than 512 MiB of memory beside what it has."""
    ours, theirs = harness.CONTEXT.Pipe()
    process = harness.CONTEXT.Process(target=_limited, args=(theirs, work, args))
    process.start()
    theirs.close()
    result = ours.recv() if ours.poll(harness.DEADLINE_S) else None
    process.join(harness.DEADLINE_S)
    assert process.exitcode == 0, f"it ended with {process.exitcode}"
    return result


def _limited(pipe: Any, work: Callable[..., Any], args: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    has_bytes = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGESIZE")
    resource.setrlimit(resource.RLIMIT_AS, (has_bytes + (512 << 20),) * 2)
    pipe.send(work(*args))


def deaths(operations: list[str]) -> list[Death]:
    """Every way to die at the operations of a run."""
    found = []
    for number, name in enumerate(operations):
        found += [Death(number), Death(number, halfway=True)] if name in DIVISIBLE else [Death(number)]
    return found


def newest_committed(directory: Path) -> str | None:
    """The newest checkpoint of the newest attempt that has any, as a stranger would find it."""
    for attempt in sorted(directory.glob("attempt-*"), reverse=True):
        found = {}
        for path in attempt.glob("step-*/manifest.json"):
            found[json.loads(path.read_text())["serial"]] = f"{attempt.name}/{path.parent.name}"
        if found:
            return found[max(found)]
    return None
