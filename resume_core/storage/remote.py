"""The store for whatever fsspec can reach. The only module that imports fsspec."""

from __future__ import annotations

import errno
import inspect
import secrets
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import fsspec
from fsspec.asyn import AsyncFileSystem
from fsspec.core import url_to_fs

from resume_core.errors import CorruptCheckpointError
from resume_core.nearest import did_you_mean
from resume_core.storage.digest import byte_view
from resume_core.storage.interface import Names, Sink, Store, refuse_large
from resume_core.storage.paths import join_key, temporary_name, validate_key
from resume_core.storage.redact import Redactor, public_url, split_user
from resume_core.storage.requests import Requests, is_transient
from resume_core.storage.sinks import OrderedSink

__all__ = ["FsspecStore", "refuse_credentials", "refuse_unknown"]

_T = TypeVar("_T")

_USUAL = ("file", "s3", "gs", "az", "hf", "sftp", "memory")  # of some fifty


class FsspecStore(Store):
    """Anything fsspec can reach. What it promises rests on the file system behind it.

    ``put`` is a rename where the file system has one of its own, else one ``pipe_file``: atomic on object stores and in
    memory. ``create`` is exclusive where the file system has an exclusive mode (``pipe_file(mode="create")``); in any
    case it looks first and reads back what it wrote, so that of two writers at once, with different bytes, the one that
    was overwritten usually learns it. Callers that need more put a random token into the name. ``delete_empty`` does
    nothing: object stores have no folders.

    Args:
        url: as fsspec takes it.
        storage_options: for the file system's constructor. No credential in it is ever shown.

    Raises:
        ValueError: fsspec knows no such protocol.
        ImportError: the package for that protocol is missing.
    """

    late_writes = True
    # MemoryFileSystem and fsspec's default look and then write; in one process the lock closes that gap.
    _create_lock = threading.Lock()

    num_parallel_requests = 8

    def __init__(self, url: str, storage_options: dict[str, Any] | None = None) -> None:
        options = dict(storage_options or {})
        refuse_protocols(url, "directory")
        self.url = public_url(url).rstrip("/")
        self._fs: fsspec.AbstractFileSystem
        self._fs, root = url_to_fs(url, **options)
        self._root = root.rstrip("/")
        loop = self._fs.loop if self._is_async else None
        self._requests = Requests(loop, Redactor(url, options), self._is_transient)
        pipe = getattr(self._fs, "_pipe_file", self._fs.pipe_file)
        # Older file systems pass unknown keywords on, or ignore them: ask for the mode only where it is named.
        self._create_mode = {"mode": "create"} if "mode" in inspect.signature(pipe).parameters else {}
        self._renames = type(self._fs).mv is not fsspec.AbstractFileSystem.mv

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    def hurry(self) -> None:
        """See ``Store.hurry``."""
        self._requests.hurry()

    def create(self, key: str, data: bytes) -> bool:
        """See ``Store.create``, and the class for how exclusive it is."""
        with self._create_lock:
            if self._info(key) is not None:
                return False
            try:
                self._with_parent(key, lambda: self._pipe(key, data, **self._create_mode))
            except OSError:
                # the reply may have been lost, and what a second try met was our own
                found = self._content(key)
                if found is None:
                    raise
                return found == data
        return self._content(key) == data

    def put(self, key: str, data: bytes) -> None:
        """See ``Store.put``. When the reply is lost, reading back decides."""
        if self._renames:
            with self.open_sink(key, len(data)) as sink:
                sink.write_at(0, data)
            return
        try:
            self._with_parent(key, lambda: self._pipe(key, data))
        except OSError:
            if self._content(key) != data:
                raise

    def open_sink(self, key: str, size_bytes: int) -> Sink:
        """See ``Store.open_sink``. Streamed to a temporary name, which is then changed."""
        return _StreamSink(self, validate_key(key), size_bytes)

    def read(self, key: str) -> bytes:
        """See ``Store.read``."""
        refuse_large(self.locate(key), self._require_file(key)["size"])
        return bytes(self._request("cat_file", key))

    def size(self, key: str) -> int:
        """See ``Store.size``."""
        return int(self._require_file(key)["size"])

    def read_into(self, key: str, offset_bytes: int, view: memoryview | bytearray) -> None:
        """See ``Store.read_into``."""
        target = byte_view(view)
        end_bytes = offset_bytes + target.nbytes
        if self._require_file(key)["size"] < end_bytes:
            raise EOFError(f"{self.locate(key)} ends before byte {end_bytes}")
        if not target.nbytes:
            return
        data = self._request("cat_file", key, start=offset_bytes, end=end_bytes, size_bytes=target.nbytes)
        if len(data) != target.nbytes:
            raise EOFError(f"{self.locate(key)} gave {len(data)} of {target.nbytes} bytes from {offset_bytes}")
        target[:] = data

    def list(self, prefix: str) -> Names:
        """See ``Store.list``."""
        return sorted(self._children(prefix))

    def exists(self, key: str) -> bool:
        """See ``Store.exists``."""
        info = self._info(key)
        return info is not None and info["type"] == "file"

    def delete(self, key: str) -> None:
        """See ``Store.delete``."""
        if self.exists(key):
            with suppress(FileNotFoundError):  # somebody else was faster
                self._request("rm_file", key)

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

    # ---- one request each

    @property
    def _is_async(self) -> bool:
        return isinstance(self._fs, AsyncFileSystem) and self._fs.async_impl

    def _is_transient(self, error: BaseException) -> bool:
        return is_transient(error)

    def _path(self, key: str) -> str:
        return f"{self._root}/{validate_key(key)}"

    def _request(self, method: str, key: str, *args: Any, size_bytes: int = 0, **kwargs: Any) -> Any:
        """A method of the file system, in its asynchronous form where it has one."""
        bound = getattr(self._fs, f"_{method}" if self._is_async else method)
        path = self._root if method == "ls" and not key else self._path(key)  # the root can be listed, and only that
        return self._requests.run(self.locate(key), partial(bound, path, *args, **kwargs), size_bytes)

    def _pipe(self, key: str, data: bytes, **mode: str) -> None:
        self._request("pipe_file", key, data, size_bytes=len(data), **mode)

    def _info(self, key: str) -> dict[str, Any] | None:
        self._path(key)
        self._fs.invalidate_cache()
        try:
            return dict(self._request("info", key))
        except (FileNotFoundError, NotADirectoryError):
            return None

    def _require_file(self, key: str) -> dict[str, Any]:
        info = self._info(key)
        if info is None or info["type"] != "file":
            raise FileNotFoundError(errno.ENOENT, f"{self.locate(key)}: no such file")
        return info

    def _children(self, prefix: str) -> dict[str, str]:
        self._fs.invalidate_cache()  # listings of another process's work must never come from fsspec's cache
        try:
            entries = self._request("ls", prefix, detail=True)
        except (FileNotFoundError, NotADirectoryError):
            return {}
        found = {entry["name"].rstrip("/"): entry["type"] for entry in entries}
        # the entry of a file itself, or an object store's marker of a folder
        found.pop(self._path(prefix) if prefix else self._root, None)
        return {name.rsplit("/", 1)[-1]: kind for name, kind in found.items()}

    def _content(self, key: str) -> bytes | None:
        """The bytes of a file; None when it is not there, or cannot be shown to be."""
        with suppress(OSError, EOFError, CorruptCheckpointError):
            return self.read(key)
        return None

    def _with_parent(self, key: str, write: Callable[[], _T]) -> _T:
        """``write()``, and again with its folders made, where the file system has folders and misses one."""
        try:
            return write()
        except FileNotFoundError:
            with self._requests.explained(self.locate(key)):
                self._fs.makedirs(self._path(key).rsplit("/", 1)[0], exist_ok=True)
            return write()

    def _rename(self, old: str, new: str) -> None:
        """Give a file another name. By ``mv`` only where it is the file system's own: fsspec's takes patterns."""
        if self._renames:
            with self._requests.explained(self.locate(new)):
                self._fs.mv(self._path(old), self._path(new))
        else:
            self._request("cp_file", old, self._path(new))
            self._request("rm_file", old)


def refuse_unknown(url: str, name: str) -> None:
    """Refuse a URL that no file system can be made for; none is made, as that may ask a network.

    Args:
        url: as fsspec takes it.
        name: of the argument, for messages.

    Raises:
        ValueError: fsspec knows no such protocol, an S3 URL holds credentials, or it names no bucket.
        ImportError: the package for that protocol is missing.
    """
    refuse_protocols(url, name)
    for part in url.split("::"):
        protocol, _, rest = part.partition("://")
        if protocol in ("s3", "s3a"):
            refuse_credentials(part)
            if not rest.strip("/").partition("/")[0] or rest.startswith("/"):
                raise ValueError(f"{name} {public_url(url)} names no bucket: write {protocol}://bucket/folder")


def refuse_protocols(url: str, name: str) -> None:
    """Refuse a URL, or a chain of them, with a protocol that nothing here speaks.

    Args:
        url: as fsspec takes it.
        name: of the argument, for messages.

    Raises:
        ValueError: fsspec knows no such protocol.
        ImportError: the package for that protocol is missing.
    """
    public = public_url(url)
    for part in url.split("::"):
        protocol, separator, _ = part.partition("://")
        if not separator and "/" in part:  # the end of a chain may be a path
            continue
        try:
            fsspec.get_filesystem_class(protocol)
        except ValueError as error:
            meant = did_you_mean(protocol, fsspec.available_protocols())
            problem = f"{name} {public} cannot be opened: fsspec knows no protocol {protocol!r}."
            raise ValueError(problem + (meant or f" The usual ones are {', '.join(_USUAL)}.")) from error
        except ImportError as error:
            extra = 'pip install "exact-resume[s3]"' if protocol in ("s3", "s3a") else str(error).rstrip(".")
            raise ImportError(f"{name} {public} needs a package that is not installed: {extra}") from error


def refuse_credentials(url: str) -> None:
    """S3 has no place for them in a URL.

    Raises:
        ValueError: there are some.
    """
    user, rest = split_user(url)
    if user:
        raise ValueError(
            f'{rest}: S3 takes no credentials in the URL; use a profile, or storage_options={{"key": ..., "secret": '
            "...}"
        )


class _StreamSink(OrderedSink):
    """Streams to a temporary name: a file that fsspec opened commits what it has when its block raises."""

    def __init__(self, store: FsspecStore, key: str, size_bytes: int) -> None:
        super().__init__(store.locate(key), size_bytes)
        self._store, self._key = store, key
        folder, _, name = key.rpartition("/")
        self._temporary = join_key(folder, temporary_name(name, secrets.token_hex(4)))
        self._file = store._with_parent(self._temporary, self._open)

    def _open(self) -> Any:
        with self._store._requests.explained(self._path):
            return self._store._fs.open(self._store._path(self._temporary), "wb")

    def _append(self, piece: memoryview) -> None:
        with self._store._requests.explained(self._path):
            self._file.write(piece)

    def _finish(self) -> None:
        with self._store._requests.explained(self._path):
            self._file.close()
        self._store._rename(self._temporary, self._key)

    def _abort(self) -> None:
        with suppress(Exception):
            self._file.close()
        with suppress(Exception):
            self._store.delete(self._temporary)
