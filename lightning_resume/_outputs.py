"""What a run puts out beside its own checkpoints: logs, files of ``ModelCheckpoint``, a progress bar."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lightning_resume._callbacks import (
    CheckpointFiles,
    Shadow,
    apply_callbacks,
    capture_callbacks,
    model_checkpoints,
    quiet_setup,
)
from lightning_resume._loggers import Loggers
from lightning_resume._progress import apply_progress, capture_progress

__all__ = ["Outputs"]


class Outputs:
    """The outputs of one fit.

    Args:
        trainer: in the ``setup`` hook of the first callback that matters here.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._loggers = Loggers(trainer.loggers, writes=trainer.is_global_zero)
        self._files: list[CheckpointFiles] = []
        self._quiet = False
        self._saved: Mapping[str, Any] | None = None

    def open(self, preamble: Mapping[str, Any]) -> None:
        """Move everything to where the run puts it, before anybody asks for it; empty for a new run."""
        self._quiet = bool(preamble)
        self._loggers.open(preamble.get("loggers", ()))
        if preamble:
            for callback in self._trainer.callbacks:
                if any(cls.__name__ == "SaveConfigCallback" for cls in type(callback).__mro__):
                    callback.already_saved = True  # LightningCLI's: it stops at a file that is there

    def preamble(self) -> dict[str, Any]:
        """For `open` in the next attempt: plain JSON."""
        return {"loggers": self._loggers.preamble()}

    def install(self, shadow: Shadow) -> None:
        """Shadow what is needed of the callbacks."""
        callbacks = model_checkpoints(self._trainer.callbacks)
        self._files = [CheckpointFiles(callback, shadow) for callback in callbacks]
        if self._quiet:
            for callback in callbacks:
                shadow(callback, "setup", quiet_setup)

    def begin(self) -> None:
        """A new run is about to fetch its first batch."""
        for files in self._files:
            files.begin(self._trainer)

    def capture(self, *, logs: bool = True) -> dict[str, Any]:
        """What is there now; without ``logs``, what loggers have written stays out."""
        return {
            "loggers": self._loggers.capture() if logs else [],
            "files": [files.capture() for files in self._files],
            "progress": capture_progress(self._trainer.progress_bar_callback),
            **capture_callbacks(self._trainer.callbacks),
        }

    def files_with(self, place: int, path: str) -> list[str] | None:
        """The files of one ``ModelCheckpoint``, with the one that is being written."""
        return self._files[place].capture_with(path)

    def apply(self, saved: Mapping[str, Any]) -> None:
        """Go on with what `capture` saw; what the process puts out until `put_back` is the run's already."""
        self._saved = saved
        for files, state in zip(self._files, saved["files"], strict=False):
            files.apply(state)

    def put_back(self) -> None:
        """Right before the first batch, or when there is none: the rest of `apply`."""
        saved, self._saved = self._saved, None
        if saved is not None:
            self._loggers.put_back(saved["loggers"])

    def mend(self, saved: Mapping[str, Any], *, shows: bool) -> None:
        """After the hooks that begin training, which clear some of this; ``shows`` when training goes on."""
        apply_callbacks(self._trainer.callbacks, saved)
        if shows:
            apply_progress(self._trainer.progress_bar_callback, saved["progress"], self._trainer)
