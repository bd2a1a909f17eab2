"""The file or folder that an export leaves: whole or not at all."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

__all__ = ["check_place", "placed"]


def check_place(out: Path, *, force: bool, names: re.Pattern[str] | None) -> None:
    """Refuse to write where something is that must stay.

    Args:
        out: where an export is to lie.
        force: whether an earlier export may be replaced.
        names: of the files in a folder; None when the export is one file.

    Raises:
        FileExistsError: something is there. With ``force``: it is none of that kind, so not what may be replaced.
    """
    if not os.path.lexists(out):
        return
    if not force:
        raise FileExistsError(f"{out} exists: choose another place, or replace it with --force")
    if names is None:
        if out.is_dir() and not out.is_symlink():
            raise FileExistsError(f"{out} is a folder and the export is a file: choose another place")
        return
    if not out.is_dir():
        raise FileExistsError(f"{out} is a file and the export is a folder: choose another place")
    foreign = sorted(name for path in out.iterdir() for name in _foreign(path, names))
    if foreign:
        raise FileExistsError(
            f"{out} holds {', '.join(foreign[:5])}, which no export wrote: --force replaces exports alone"
        )


def _foreign(path: Path, names: re.Pattern[str]) -> list[str]:
    """The names below ``path`` that no export writes; it may have folders with files in them, and nothing deeper."""
    if not path.is_dir():
        return [] if names.fullmatch(path.name) else [path.name]
    inside = [] if path.is_symlink() else list(path.iterdir())
    are_ours = [not file.is_dir() and names.fullmatch(f"{path.name}/{file.name}") for file in inside]
    return [] if inside and all(are_ours) else [path.name]


@contextlib.contextmanager
def placed(out: Path, *, force: bool, names: re.Pattern[str] | None) -> Iterator[Path]:
    """Write under a temporary name beside ``out``, which gets its name when the block has ended without an error.

    Args:
        out: see `check_place`.
        force: see `check_place`.
        names: see `check_place`.

    Yields:
        Where to write; nothing is there.

    Raises:
        FileExistsError: see `check_place`.
        OSError: the place cannot be written.
    """
    check_place(out, force=force, names=names)
    out.parent.mkdir(parents=True, exist_ok=True)
    temporary = _beside(out, "tmp")
    try:
        yield temporary
        _sync(temporary)
        check_place(out, force=force, names=names)  # it may have come in the meantime
        _rename(temporary, out)
        _sync_folder(out.parent)
    finally:
        _remove(temporary)


def _beside(out: Path, suffix: str) -> Path:
    return out.with_name(f".{out.name}.{secrets.token_hex(4)}.{suffix}")


def _rename(temporary: Path, out: Path) -> None:
    if not temporary.is_dir() or not os.path.lexists(out):
        temporary.replace(out)
        return
    before = _beside(out, "old")  # no system renames a folder over one that is not empty
    out.rename(before)
    try:
        temporary.rename(out)
    except BaseException:
        before.rename(out)
        raise
    _remove(before)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    if path.is_dir():
        for child in sorted(path.iterdir()):
            _sync(child)
        _sync_folder(path)
        return
    with path.open("rb") as opened:
        os.fsync(opened.fileno())


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
