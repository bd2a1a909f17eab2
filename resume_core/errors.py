"""Everything this project raises on purpose.

::

    ResumeError
    ├── CheckpointNotFoundError   (also FileNotFoundError)  a checkpoint that must exist does not
    ├── CorruptCheckpointError    bytes differ from what the manifest says, or a file cannot be understood
    ├── ConfigChangedError        the run differs from the one that saved; nothing was loaded
    ├── UnsupportedStateError     a value that no checkpoint of ours can hold; refused at the first save
    ├── SaveFailedError           a save did not reach the store (chained to what stopped it)
    ├── SupersededError           a newer attempt of the run has started; this one must stop
    └── DivergedError             the run is not what it was, or its loss is not what it should be; see `Check`, `Watch`

`Preempted` is no error but a ``SystemExit``: the run was saved, and the machine is wanted. Mistakes of the caller stay
``ValueError`` and ``TypeError``.
"""

from __future__ import annotations


class ResumeError(Exception):
    """Base of all errors of this project.

    Attributes:
        path: where it happened: a checkpoint, a file, or a dotted place in the state. Empty when unknown.
        step: the optimizer step concerned, None when there is none.
    """

    def __init__(self, message: str, *, path: str = "", step: int | None = None) -> None:
        super().__init__(message)
        self.path = path
        self.step = step


class CheckpointNotFoundError(ResumeError, FileNotFoundError):
    """A checkpoint that was asked for, or that must exist, does not."""


class CorruptCheckpointError(ResumeError):
    """A file of a checkpoint is missing, torn or altered, or is of a format this version cannot read."""


class ConfigChangedError(ResumeError):
    """The run differs from the one that wrote the checkpoint. Raised before anything is loaded.

    Attributes:
        differences: every saved and current pair that decided it (``resume_core.capture.runconfig.Difference``).
    """

    def __init__(
        self, message: str, *, differences: tuple[object, ...] = (), path: str = "", step: int | None = None
    ) -> None:
        super().__init__(message, path=path, step=step)
        self.differences = differences


class UnsupportedStateError(ResumeError):
    """A value in the state that no checkpoint can hold. ``path`` names its place."""


class SaveFailedError(ResumeError):
    """A save did not become durable; ``__cause__`` is what stopped it."""


class SupersededError(ResumeError):
    """A newer attempt of the same run has started, so this one may not commit any more."""


class DivergedError(ResumeError):
    """The first steps after a resume differ from the recorded ones, or loss or gradients are out of bounds.

    No checkpoint was altered, and none was taken where it was found.
    """


class Preempted(SystemExit):
    """The run was saved and leaves, because somebody asked for the machine; starting it again goes on.

    No error: a script that does not catch it ends with ``Preemption.exit_code``, after its ``finally`` blocks.
    """
