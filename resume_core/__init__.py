"""Training runs that continue after a kill as if they had never been killed, to the last bit.

This package knows no training framework. Users come in through a plugin, `lightning_resume` or `accelerate_resume`, and
find here the policies that they pass and the errors that they may catch.
"""

from importlib.metadata import PackageNotFoundError, version

from resume_core.errors import (
    CheckpointNotFoundError,
    ConfigChangedError,
    CorruptCheckpointError,
    ResumeError,
    SaveFailedError,
    SupersededError,
    UnsupportedStateError,
)
from resume_core.image import register_leaf
from resume_core.policy import Changes, Keep, SaveEvery

__all__ = [
    "SaveEvery",
    "Keep",
    "Changes",
    "ResumeError",
    "CheckpointNotFoundError",
    "CorruptCheckpointError",
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
