"""A run's directory, opened to be looked at or trained in; without torch, so that looking starts at once."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from resume_core.scratch import open_scratch
from resume_core.storage import Lineage, open_store

__all__ = ["look_at", "open_lineage"]


def open_lineage(
    directory: str | os.PathLike[str],
    scratch: str | os.PathLike[str] | None,
    storage_options: Mapping[str, Any] | None,
) -> Lineage:
    """A run by its directory, with what lies on its scratch. Nothing is created.

    Raises:
        ValueError: an unusable ``directory`` or ``scratch``.
    """
    store = open_store(os.fspath(directory), dict(storage_options or {}))
    near = open_scratch(scratch, store)
    return Lineage(store, [store] if near is None else [near, store])


def look_at(url: str, scratch: str | None, storage_options: Mapping[str, Any] | None) -> Lineage:
    """`open_lineage` for a command: somebody waits, and hears in seconds of a server that is not there.

    Raises:
        ValueError: an unusable ``url`` or ``scratch``.
    """
    lineage = open_lineage(url, scratch, storage_options)
    lineage.store.hurry()
    return lineage
