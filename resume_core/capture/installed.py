"""Which code is of Python or of an installed package, and so no code of the user's own."""

from __future__ import annotations

import sysconfig

__all__ = ["is_installed"]

_FOLDERS = ("site-packages", "dist-packages", sysconfig.get_paths()["stdlib"], "<frozen ")


def is_installed(file: str) -> bool:
    """Whether a source file, by its path as modules and code have it, came with Python or a package."""
    return any(folder in file for folder in _FOLDERS)
