"""Training runs that continue after a kill as if they had never been killed, to the last bit.

This package knows no training framework. Users come in through a plugin, `lightning_resume` or `accelerate_resume`, and
find here the policies that they pass and the errors that they may catch.
"""

from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from resume_core.errors import (
    CheckpointNotFoundError,
    ConfigChangedError,
    CorruptCheckpointError,
    DivergedError,
    Preempted,
    ResumeError,
    SaveFailedError,
    SupersededError,
    UnsupportedStateError,
)
from resume_core.policy import Changes, Check, Keep, Preemption, SaveEvery, Watch

if TYPE_CHECKING:
    from resume_core.image import register_leaf

__all__ = [
    "SaveEvery",
    "Keep",
    "Changes",
    "Preemption",
    "Check",
    "Watch",
    "Preempted",
    "ResumeError",
    "CheckpointNotFoundError",
    "CorruptCheckpointError",
    "DivergedError",
    "ConfigChangedError",
    "UnsupportedStateError",
    "SaveFailedError",
    "SupersededError",
    "register_leaf",
    "__version__",
]

try:
    __version__ = version("exact-resume")
except PackageNotFoundError:  # imported from a checkout that was not installed
    __version__ = "0+unknown"


def __getattr__(name: str) -> Any:
    """Import what needs torch when it is asked for: the command line must start without."""
    if name == "register_leaf":
        from resume_core.image import register_leaf

        return register_leaf
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
