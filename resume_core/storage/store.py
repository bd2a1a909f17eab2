"""Opening a store by its URL."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from resume_core.storage.interface import Sink, Store
from resume_core.storage.local import LocalStore

if TYPE_CHECKING:
    from resume_core.storage.remote import FsspecStore

__all__ = ["Sink", "Store", "absolute", "is_path", "open_store"]


def open_store(url: str | os.PathLike[str], storage_options: dict[str, Any] | None = None) -> Store:
    """The store at ``url``. Nothing is created before the first write.

    Args:
        url: a local path (``~`` and relative ones too), ``file://...``, or any URL that fsspec knows.
        storage_options: passed to fsspec for anything that is not local.

    Raises:
        ValueError: fsspec knows no such protocol, the path is empty, or an S3 URL holds credentials.
        ImportError: the package for that protocol is missing (for S3: ``pip install "exact-resume[s3]"``).
    """
    text = os.fspath(url)
    if not text:
        raise ValueError("the store needs a path or a URL, got an empty one")
    if text.startswith(("file://", "local://")):
        return LocalStore(text.split("://", 1)[1])
    if is_path(text):
        return LocalStore(text)
    return _remote_kind(text)(text, storage_options)


def _remote_kind(text: str) -> type[FsspecStore]:
    """The class for a URL; imported when there is one, as fsspec and what tries again bring a hundred modules."""
    from resume_core.storage.remote import FsspecStore
    from resume_core.storage.s3 import S3Store

    return S3Store if text.startswith(("s3://", "s3a://")) else FsspecStore


def absolute(place: str | os.PathLike[str]) -> str:
    """A local path made absolute now, so that a later ``chdir`` changes nothing; a URL, or "", as it is."""
    text = os.fspath(place)
    return os.path.abspath(os.path.expanduser(text)) if text and is_path(text) else text


def is_path(text: str) -> bool:
    """Whether fsspec's URLs (``s3://bucket``) and chains of them (``simplecache::s3://bucket``) can be ruled out."""
    return "://" not in text and ("::" not in text or os.sep in text.partition("::")[0])
