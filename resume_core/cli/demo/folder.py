"""The folder that a demo writes to."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from resume_core.cli.demo.processes import DemoError

__all__ = ["INTERRUPTED", "JSON", "PLOT", "UNINTERRUPTED", "demo_folder"]

UNINTERRUPTED = "uninterrupted"
INTERRUPTED = "interrupted"
JSON = "demo.json"
PLOT = "demo.png"
_MARKER = ".exact-resume-demo"  # only where it lies was everything below written by a demo
_WRITTEN = (UNINTERRUPTED, INTERRUPTED, JSON, PLOT)


@contextlib.contextmanager
def demo_folder(out: Path) -> Iterator[Path]:
    """Make ``out`` ready: what an earlier demo wrote there goes, everything else stays.

    Yields:
        The folder, absolute, as nobody else's for as long as the block lasts.

    Raises:
        DemoError: it cannot be written, another demo is running in it, or it holds files by the demo's names that no
            demo wrote.
    """
    out = out.absolute()
    found = [name for name in _WRITTEN if os.path.lexists(out / name)]
    if found and not (out / _MARKER).exists():
        raise DemoError(f"{out} holds {', '.join(found)}, and no demo wrote that. Choose another folder with --out.")
    with _claim(out):
        for name in found:
            _remove(out / name)
        yield out


@contextlib.contextmanager
def _claim(out: Path) -> Iterator[None]:
    try:
        out.mkdir(parents=True, exist_ok=True)
        marker = (out / _MARKER).open("a")
    except OSError as error:
        raise DemoError(f"{out} cannot be written ({error}). Choose another folder with --out.") from error
    with marker:
        try:
            fcntl.flock(marker, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise DemoError(f"another demo is running in {out}. Choose another folder with --out.") from error
        yield


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()
