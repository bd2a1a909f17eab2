"""What a place cannot be used for, found out without asking a network, and before there is anything to write.

The first write would meet the same and say so; but a model may have been built by then, on many machines. What takes a
request (whether a bucket is there, whether it may be written) is left to that.
"""

from __future__ import annotations

import errno
import os
import re

from resume_core.storage.local import LocalStore
from resume_core.storage.store import is_path

__all__ = ["refuse_unusable"]

_ONE_SLASH = re.compile(r"([a-z][a-z0-9+.-]+):/(?!/)(.*)", re.IGNORECASE | re.DOTALL)


def refuse_unusable(place: str | os.PathLike[str], name: str, *, only_read: bool = False) -> None:
    """Refuse a directory of which it is certain that nothing can be stored in it.

    Args:
        place: a local path, or any URL that fsspec knows.
        name: of the argument, for messages.
        only_read: nothing will be written.

    Raises:
        TypeError: it is neither a path nor a URL.
        ValueError: an empty one, one that cannot be meant, or a protocol that nobody knows.
        ImportError: the package for its protocol is missing.
        OSError: a file is in the way, or this user may not write there.
    """
    if not isinstance(place, (str, os.PathLike)):
        raise TypeError(f"{name} must be a path or a URL, got {place!r}")
    text = os.fspath(place)
    if not text:
        raise ValueError(f'{name} is empty: give a path or a URL, as in {name}="runs/first"')
    if found := _ONE_SLASH.match(text):
        raise ValueError(f"{name}={text!r} has one slash too few: write {found[1]}://{found[2]}")
    if text.startswith(("file://", "local://")):
        text = text.split("://", 1)[1]
    if is_path(text):
        _refuse_unusable_path(LocalStore(text).url, name, only_read=only_read)
        return
    from resume_core.storage.remote import refuse_unknown  # fsspec brings a hundred modules

    refuse_unknown(text, name)


def _refuse_unusable_path(path: str, name: str, *, only_read: bool) -> None:
    place = path
    while not os.path.exists(place) and place != os.path.dirname(place):
        if os.path.islink(place):
            problem = f"{place} is a link to what is not there. Mend the link, or choose another {name}"
            raise FileNotFoundError(errno.ENOENT, f"{name} {path} cannot be made: {problem}")
        place = os.path.dirname(place)
    if not os.path.isdir(place):
        problem = f"{place} is a file. Move it away, or choose another {name}"
        raise NotADirectoryError(errno.ENOTDIR, f"{name} {path} cannot be made: {problem}")
    needed = (os.R_OK if place == path else 0) | os.X_OK | (0 if only_read else os.W_OK)
    if not os.access(place, needed):
        verb = "read" if only_read or not os.access(place, needed & ~os.W_OK) else "written"
        raise PermissionError(errno.EACCES, f"{name} {path} cannot be {verb}: {_reason(place, verb, name)}")


def _reason(place: str, verb: str, name: str) -> str:
    if verb == "written" and hasattr(os, "ST_RDONLY") and os.statvfs(place).f_flag & os.ST_RDONLY:
        return f"{place} lies on a file system that is mounted for reading only. Choose another {name}"
    who = f"this user (number {os.getuid()})" if hasattr(os, "getuid") else "this user"
    right = "write" if verb == "written" else "read"
    return f"{who} may not {right} in {place}. Run as who owns it, let this user {right} it, or choose another {name}"
