"""The callback of a Trainer whose script says nothing of it; see `_entry_point`."""

from __future__ import annotations

from typing import Any

from lightning_resume.callback import ResumeCallback
from resume_core.policy import SaveEvery

__all__ = ["InstalledResumeCallback"]


class InstalledResumeCallback(ResumeCallback):
    """The one that a ``Trainer`` gets through the entry point, with settings from the environment.

    It leaves a Trainer alone that has a `ResumeCallback` of the user's. The second Trainer of a process that trains is
    another run, in a folder of its own below the directory, and so on; one whose training was interrupted is no
    second one when it is started again.

    Args:
        directory: where the first run's checkpoints live.
        save: when to save.
    """

    _yields = True
    _num_begun = 0

    def __init__(self, directory: str, *, save: SaveEvery) -> None:
        super().__init__(directory, save=save)
        self._root, self._place = directory, -1

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Take over the fit that is about to begin, unless the user has a callback for it."""
        if stage != "fit" or any(_is_own(c) for c in trainer.callbacks):
            return
        if self._place < 0:
            self._place = InstalledResumeCallback._num_begun
            InstalledResumeCallback._num_begun += 1
            self._directory = self._root + (f"/trainer-{self._place + 1}" if self._place else "")
        super().setup(trainer, pl_module, stage)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Let the save in flight commit, give the Trainer back, and leave the place to the next try."""
        if self._place == InstalledResumeCallback._num_begun - 1 >= 0:
            InstalledResumeCallback._num_begun, self._place = self._place, -1
        super().on_exception(trainer, pl_module, exception)


def _is_own(callback: Any) -> bool:
    return isinstance(callback, ResumeCallback) and not callback._yields
