"""One way to save and restore a training state: what all of them have in common."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from measures.memory import sync_tree
from measures.states import Live

DEADLINE_S = 300.0  # of one save; a peer that needs longer hangs


class Times(NamedTuple):
    """Of one save: seconds that training waits, and seconds until every byte is on the disk."""

    blocking_s: float
    durable_s: float


class Peer:
    """One way to save and restore.

    Args:
        live: what is trained; not changed by `start`, changed by `load`.
        folder: exists and is empty; everything is written below it.

    Raises:
        ImportError: a package is not installed.
    """

    key: ClassVar[str]
    """One word, for the command line."""

    name: ClassVar[str]
    """As the table of saving calls it; nothing where a peer differs from another in loading alone."""

    load_name: ClassVar[str] = ""
    """As the table of restoring calls it; nothing where another peer loads the same files in the same way."""

    in_background: ClassVar[bool] = False
    """Whether training goes on before the files are written."""

    syncs: ClassVar[bool] = False
    """Whether a save that has ended is on the disk; the others' files are synced here, and that counts."""

    loads_into_moments: ClassVar[bool] = False
    """Whether `load` takes an optimizer that has its moments already, other than when a job starts."""

    def __init__(self, live: Live, folder: Path) -> None:
        self.live, self.folder = live, folder
        self.number = 0  # of the save that was started last

    @property
    def path(self) -> Path:
        """Of the save that was started last."""
        return self.folder / f"save-{self.number}"

    def save(self, state: dict[str, Any]) -> Times:
        """Save, with nothing else going on."""
        start = time.perf_counter()
        ended = self._begin(state)
        blocking_s = time.perf_counter() - start
        ended()
        return Times(blocking_s, time.perf_counter() - start)

    def save_beside(self, state: dict[str, Any], train: Callable[[Callable[[], bool]], float]) -> float:
        """What ``train`` returns, which is called until it is told that the save is over."""
        with ThreadPoolExecutor(1) as executor:
            ended: Future[None] = executor.submit(self._begin(state))
            found = train(ended.done)
            ended.result()
        return found

    def _begin(self, state: dict[str, Any]) -> Callable[[], None]:
        """The part that training waits for; returns the other one."""
        self.number += 1
        self.start(state)
        return self._end

    def _end(self) -> None:
        self.finish()
        if not self.syncs:
            sync_tree(self.folder)

    def prepare(self) -> None:
        """Do what a job does ahead of its first save."""

    def start(self, state: dict[str, Any]) -> None:
        """Do what training waits for."""
        raise NotImplementedError

    def finish(self) -> None:
        """Wait until the last save is written."""

    def prune(self) -> None:
        """Delete what came before the last save, where that is something that it does itself."""

    def load(self) -> None:
        """Bring `live` to what was saved last."""
        raise NotImplementedError

    def close(self) -> None:
        """Give back memory and processes."""
