"""A run without a directory: ``save_state`` adds what it lacks to its folder, and ``load_state`` goes on exactly."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from accelerate_resume._folders import StateFolders
from accelerate_resume._framework import AcceleratorFramework
from resume_core.capture.rng import capture_rng, preserved_rng
from resume_core.embedded import Given
from resume_core.folder_session import FolderSession

__all__ = ["ALONE", "OwnStates"]

ALONE = (
    "Accelerate alone would: not exact from here on are positions in loaders and the epoch, order and augmentation of "
    "samples, random draws, gradients of a half-filled window, and what was given to counters() and track()"
)


class OwnStates:
    """``save_state`` and ``load_state`` of one Accelerator.

    Args:
        framework: of its run.
        session: decides.
        start: begins the run, if it has not begun.
        go_on: begins it, or begins it anew, from what the session was given.
        warn: called with what users should know.
    """

    def __init__(
        self,
        framework: AcceleratorFramework,
        session: FolderSession,
        *,
        start: Callable[[], None],
        go_on: Callable[[], None],
        warn: Callable[[list[str]], None],
    ) -> None:
        self._framework, self._session = framework, session
        self._start, self._go_on, self._warn = start, go_on, warn
        accelerated = framework.accelerated
        self._folders = StateFolders(accelerated.accelerator)
        self._folders.before_writing(self._begin)
        self._rng: dict[str, Any] | None = None
        self._folder = ""
        accelerated.around("save_state", self._save)
        accelerated.around("load_state", self._load)

    # ---- saving

    def _save(self, plain: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self._start()
        self._rng = capture_rng()
        try:
            with preserved_rng(), self._folders.keeping_all():  # what hooks of the user's draw must not move training
                result = plain(*args, **kwargs)
        finally:
            self._rng = None
        self._session.commit_save(self._folder, self._folders.written(self._folder))
        if self._folders.are_numbered:
            self._framework.ranks.gather("the save", None)  # complete, before another one is deleted
            self._framework.ranks.settle()
            self._folders.prune(self._folder)
        self._warn(self._framework.notes())
        return result

    def _begin(self, folder: str) -> None:
        rng, self._folder = self._rng, folder
        if rng is None:
            return  # a method of the class was called, past the Accelerator's own
        self._session.begin_save(folder, self._framework.progress, lambda: self._framework.pieces(rng))

    # ---- loading

    def _load(
        self,
        plain: Callable[..., Any],
        input_dir: str | os.PathLike[str] | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        framework = self._framework
        found = framework.ranks.share("folders to load from", self._folders.candidates(input_dir))
        if not found:
            return plain(input_dir, *args, **kwargs)
        folder, entry = self._session.find(found)
        where = framework.script.busy
        if entry is not None and where:
            self._warn([f"load_state was called {where}: positions in loaders and the epoch stay as they are"])
            entry = None

        def load() -> None:
            with self._folders.uncast(framework.accelerated.optimizers):
                plain(folder, *args, **kwargs)

        if entry is None:
            load()
        else:
            framework.script.rewind()
            self._session.give(Given(folder, entry, framework.state_of(entry.pieces, load)))
            self._go_on()
        self._folders.go_on_numbering()
        return None
