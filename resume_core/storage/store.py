"""Opening a store by its URL, and the store for whatever fsspec can reach. The only module that imports fsspec."""

from __future__ import annotations

import inspect
import os
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import fsspec
from fsspec.core import url_to_fs

from resume_core.storage.digest import byte_view
from resume_core.storage.interface import Names, Sink, Store, refuse_large
from resume_core.storage.local import LocalStore
from resume_core.storage.paths import join_key, validate_key

__all__ = ["FsspecStore", "Sink", "Store", "open_store"]

_T = TypeVar("_T")


def open_store(url: str | os.PathLike[str], storage_options: dict[str, Any] | None = None) -> Store:
    """The store at ``url``. Nothing is created before the first write.

    Args:
        url: a local path (``~`` and relative ones too), ``file://...``, or any URL that fsspec knows.
        storage_options: passed to fsspec for anything that is not local.

    Raises:
        ValueError: fsspec knows no such protocol, or the path is empty.
        ImportError: the package for that protocol is missing (for S3: ``pip install "exact-resume[s3]"``).
    """
    text = os.fspath(url)
    if not text:
        raise ValueError("the store needs a path or a URL, got an empty one")
    if text.startswith(("file://", "local://")):
        return LocalStore(text.split("://", 1)[1])
    if "://" not in text and "::" not in text:
        return LocalStore(text)
    return FsspecStore(text, storage_options)


class FsspecStore(Store):
    """Anything fsspec can reach. What it promises rests on the file system behind it.

    ``put`` is one ``pipe_file``: atomic on object stores and in memory. ``create`` is exclusive where the file system
    has an exclusive mode (``pipe_file(mode="create")``); in any case it looks first and reads back what it wrote, so
    that of two writers at once, with different bytes, the one that was overwritten usually learns it. Callers that
    need more put a random token into the name. ``delete_empty`` does nothing: object stores have no folders.

    Args:
        url: as fsspec takes it.
        storage_options: for the file system's constructor.

    Raises:
        ValueError: fsspec knows no such protocol.
        ImportError: the package for that protocol is missing.
    """

    # MemoryFileSystem and fsspec's default look and then write; in one process the lock closes that gap.
    _create_lock = threading.Lock()

    def __init__(self, url: str, storage_options: dict[str, Any] | None = None) -> None:
        self.url = url.rstrip("/")
        self._fs: fsspec.AbstractFileSystem
        self._fs, root = url_to_fs(url, **(storage_options or {}))
        self._root = root.rstrip("/")
        pipe = getattr(self._fs, "_pipe_file", self._fs.pipe_file)
        # Older file systems pass unknown keywords on, or ignore them: ask for the mode only where it is named.
        self._create_mode = {"mode": "create"} if "mode" in inspect.signature(pipe).parameters else {}

    def create(self, key: str, data: bytes) -> bool:
        """See ``Store.create``, and the class for how exclusive it is."""
        path = self._path(key)
        with self._create_lock:
            if self._info(path) is not None:
                return False
            try:
                self._with_parent(path, lambda: self._fs.pipe_file(path, data, **self._create_mode))
            except FileExistsError:
                return False
        return self._holds(path, data)

    def put(self, key: str, data: bytes) -> None:
        """See ``Store.put``. When the reply is lost, reading back decides."""
        path = self._path(key)
        try:
            self._with_parent(path, lambda: self._fs.pipe_file(path, data))
        except Exception:
            if not self._holds(path, data):
                raise

    def open_sink(self, key: str, size_bytes: int) -> Sink:
        """See ``Store.open_sink``. The parts are held in memory and uploaded at the end."""
        return _UploadSink(self, key, size_bytes)

    def read(self, key: str) -> bytes:
        """See ``Store.read``."""
        path = self._path(key)
        refuse_large(path, self._require_file(path)["size"])
        return bytes(self._fs.cat_file(path))

    def size(self, key: str) -> int:
        """See ``Store.size``."""
        return int(self._require_file(self._path(key))["size"])

    def read_into(self, key: str, offset_bytes: int, view: memoryview | bytearray) -> None:
        """See ``Store.read_into``."""
        path, target = self._path(key), byte_view(view)
        end_bytes = offset_bytes + target.nbytes
        if self._require_file(path)["size"] < end_bytes:
            raise EOFError(f"{self.locate(key)} ends before byte {end_bytes}")
        data = self._fs.cat_file(path, start=offset_bytes, end=end_bytes) if target.nbytes else b""
        if len(data) != target.nbytes:
            raise EOFError(f"{self.locate(key)} gave {len(data)} of {target.nbytes} bytes from {offset_bytes}")
        target[:] = data

    def list(self, prefix: str) -> Names:
        """See ``Store.list``."""
        return sorted(self._children(prefix))

    def exists(self, key: str) -> bool:
        """See ``Store.exists``."""
        info = self._info(self._path(key))
        return info is not None and info["type"] == "file"

    def delete(self, key: str) -> None:
        """See ``Store.delete``."""
        if self.exists(key):
            try:
                self._fs.rm_file(self._path(key))
            except FileNotFoundError:
                return  # somebody else was faster

    def delete_tree(self, prefix: str) -> None:
        """See ``Store.delete_tree``. File by file: fsspec's recursive remove takes ``[`` and ``*`` for patterns."""
        for name, kind in self._children(prefix).items():
            child = join_key(prefix, name)
            if kind == "directory":
                self.delete_tree(child)
            else:
                self.delete(child)

    def delete_empty(self, prefix: str) -> None:
        """See ``Store.delete_empty``."""
        validate_key(prefix)

    def _path(self, key: str) -> str:
        return f"{self._root}/{validate_key(key)}"

    def _info(self, path: str) -> dict[str, Any] | None:
        self._fs.invalidate_cache()
        try:
            return dict(self._fs.info(path))
        except (FileNotFoundError, NotADirectoryError):
            return None

    def _require_file(self, path: str) -> dict[str, Any]:
        info = self._info(path)
        if info is None or info["type"] != "file":
            raise FileNotFoundError(f"no such file: {path} in {self.url}")
        return info

    def _children(self, prefix: str) -> dict[str, str]:
        path = self._path(prefix) if prefix else self._root
        self._fs.invalidate_cache()  # listings of another process's work must never come from fsspec's cache
        try:
            entries = self._fs.ls(path, detail=True)
        except (FileNotFoundError, NotADirectoryError):
            return {}
        found = {entry["name"].rstrip("/"): entry["type"] for entry in entries}
        found.pop(path, None)  # the entry of a file itself, or an object store's marker of a folder
        return {name.rsplit("/", 1)[-1]: kind for name, kind in found.items()}

    def _holds(self, path: str, data: bytes) -> bool:
        try:
            return bytes(self._fs.cat_file(path)) == data
        except Exception:  # it cannot be shown to be there; the caller reports what went wrong first
            return False

    def _with_parent(self, path: str, write: Callable[[], _T]) -> _T:
        """``write()``, and again with its folders made, where the file system has folders and misses one."""
        try:
            return write()
        except FileNotFoundError:
            self._fs.makedirs(path.rsplit("/", 1)[0], exist_ok=True)
            return write()


class _UploadSink(Sink):
    """Collects a file in memory. fsspec's own ``open("wb")`` commits a torn object when its block raises."""

    def __init__(self, store: FsspecStore, key: str, size_bytes: int) -> None:
        super().__init__(store.locate(validate_key(key)), size_bytes)
        self._store = store
        self._key = key
        self._buffer = bytearray(size_bytes)

    def _write(self, offset_bytes: int, data: memoryview) -> None:
        self._buffer[offset_bytes : offset_bytes + data.nbytes] = data

    def _finish(self) -> None:
        self._store.put(self._key, bytes(self._buffer))
        self._buffer = bytearray()

    def _abort(self) -> None:
        self._buffer = bytearray()
