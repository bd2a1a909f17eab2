"""S3, through s3fs: what its requests can do beyond what fsspec offers to all.

Every request is one of s3fs' own ``_call_s3``, so its sessions, profiles, endpoints and options apply. Tries, pauses
and deadlines are those of `requests`; s3fs and botocore make one try each. (obstore needs less of the processor, but
cannot list or drop the uploads that a dead process left, and knows neither AWS profiles nor the options of s3fs.)
"""

from __future__ import annotations

import contextlib
import errno
import logging
import secrets
from collections.abc import Collection, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from functools import partial
from typing import Any

from resume_core.storage.digest import byte_view
from resume_core.storage.interface import Sink, Survey, refuse_large
from resume_core.storage.paths import join_key, validate_key
from resume_core.storage.remote import FsspecStore, refuse_credentials
from resume_core.storage.requests import PATIENCE, is_transient
from resume_core.storage.sinks import OrderedSink

__all__ = ["S3Store"]

PART_BYTES = 16 * 1024 * 1024
"""Bytes of one part of an upload; more for a file of which that would make too many."""

PARTS_AT_ONCE = 8
"""Parts of a file in flight; each is held in memory once more until it has arrived."""

_MAX_PARTS = 10_000
_READ_BYTES = 1024 * 1024
_MARK = "exact-resume-upload"  # metadata of an object: the upload that made it
_CONNECTIONS = 64

# What a server says of bytes that were altered or cut on their way, and of another request at the same moment.
_PASSING = frozenset(
    {
        *("BadDigest", "ConditionalRequestConflict", "IncompleteBody", "OperationAborted", "RequestTimeout"),
        *("SlowDown", "XAmzContentChecksumMismatch", "XAmzContentSHA256Mismatch"),
    }
)

_log = logging.getLogger("exact_resume")


class S3Store(FsspecStore):
    """A bucket, or a part of one below a prefix.

    ``put`` is one request and atomic. ``create`` is a conditional request (``If-None-Match: *``), exclusive where the
    server honours it. A large file is uploaded in parts, several at once, and exists when all have arrived.

    Args:
        url: ``s3://bucket/prefix``.
        storage_options: for ``s3fs.S3FileSystem``: ``profile``, ``key`` and ``secret``, ``endpoint_url``...

    Raises:
        ValueError: credentials in the URL, which S3 has no place for.
        ImportError: s3fs is missing.
    """

    num_parallel_reads = 8
    num_parallel_requests = 32

    def __init__(self, url: str, storage_options: dict[str, Any] | None = None) -> None:
        refuse_credentials(url)
        super().__init__(url, _with_defaults(storage_options or {}))
        self._fs.retries = 1
        self._create_mode = {"mode": "create"}
        self._bucket, self._prefix, _ = self._fs.split_path(self._root)  # an access point's name holds a slash

    def create(self, key: str, data: bytes) -> bool:
        """See ``Store.create``. Servers that do not know conditional requests get an ordinary one."""
        try:
            return super().create(key, data)
        except OSError as error:
            if error.errno != errno.ENOSYS:
                raise
        self.put(key, data)
        return self._content(key) == data

    def open_sink(self, key: str, size_bytes: int) -> Sink:
        """See ``Store.open_sink``."""
        return _UploadSink(self, validate_key(key), size_bytes)

    def read(self, key: str) -> bytes:
        """See ``Store.read``."""
        return bytes(self._run(validate_key(key), partial(self._get, key)))

    def read_into(self, key: str, offset_bytes: int, view: memoryview | bytearray) -> None:
        """See ``Store.read_into``. One request."""
        target = byte_view(view)
        if not target.nbytes:
            self._require_file(validate_key(key))
            return
        last = offset_bytes + target.nbytes - 1
        try:
            get = partial(self._get, key, target, Range=f"bytes={offset_bytes}-{last}")
            num_read = self._run(validate_key(key), get, target.nbytes)
        except OSError as error:
            if _code(error) not in ("InvalidRange", "416"):
                raise
            num_read = 0
        if num_read != target.nbytes:
            raise EOFError(f"{self.locate(key)} gave {num_read} of {target.nbytes} bytes from {offset_bytes}")

    def delete(self, key: str) -> None:
        """See ``Store.delete``."""
        self._call("delete_object", key)

    def survey(self, prefix: str) -> Survey:
        """See ``Store.survey``. All folders below ``prefix``, in one request for a thousand files; marks are ETags."""
        found: Survey = {prefix: {}}
        for page in self._pages(self._below(prefix)):
            for entry in page.get("Contents", ()):
                folder, _, name = entry["Key"][len(self._below("")) :].rpartition("/")
                if name:  # some tools put an object there to mark a folder
                    found.setdefault(folder, {})[name] = entry["ETag"]
                while len(folder) > len(prefix):
                    folder, _, name = folder.rpartition("/")
                    found.setdefault(folder, {}).setdefault(name, "")
        return found

    def abandon_uploads(self, folders: Collection[str]) -> int:
        """See ``Store.abandon_uploads``."""
        below = tuple(f"{validate_key(folder)}/" for folder in folders)
        if not below:
            return 0
        left = [(key, upload) for key, upload in self.uploads(self._below("")) if key.startswith(below)]
        return sum(self.drop_upload(key, upload) for key, upload in left)

    def drop_upload(self, key: str, upload: str) -> bool:
        """End an upload without an object; False when it had come to its end already."""
        try:
            self._call("abort_multipart_upload", key, UploadId=upload)
        except FileNotFoundError:
            return False
        return True

    def uploads(self, start: str) -> Iterator[tuple[str, str]]:
        """Key and id of every unfinished upload of an object whose name in the bucket begins with ``start``."""
        root_bytes, position = len(self._below("")), dict[str, Any]()
        while True:
            page = self._list("list_multipart_uploads", start, **position)
            for upload in page.get("Uploads", ()):
                yield upload["Key"][root_bytes:], upload["UploadId"]
            if not page.get("IsTruncated"):
                return
            position = {"KeyMarker": page["NextKeyMarker"], "UploadIdMarker": page["NextUploadIdMarker"]}

    def object_name(self, key: str) -> str:
        """The name of an object in the bucket."""
        return join_key(self._prefix, validate_key(key))

    # ---- one request each

    def _is_transient(self, error: BaseException) -> bool:
        reply = _reply(error)
        if reply is None:
            return _is_of_network(error)
        status = reply.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        return status == 429 or (status >= 500 and status != 501) or reply["Error"].get("Code") in _PASSING

    def _below(self, prefix: str) -> str:
        folder = join_key(self._prefix, prefix and validate_key(prefix))
        return f"{folder}/" if folder else ""

    def _run(self, key: str, call: Any, size_bytes: int = 0) -> Any:
        return self._requests.run(self.locate(key), call, size_bytes)

    def _prepare(self, method: str, key: str, **kwargs: Any) -> Any:
        return partial(self._fs._call_s3, method, Bucket=self._bucket, Key=self.object_name(key), **kwargs)

    def _call(self, method: str, key: str, size_bytes: int = 0, **kwargs: Any) -> dict[str, Any]:
        return dict(self._run(key, self._prepare(method, key, **kwargs), size_bytes))

    def _list(self, method: str, start: str, **kwargs: Any) -> dict[str, Any]:
        """A page of what begins with ``start``."""
        call = partial(self._fs._call_s3, method, Bucket=self._bucket, Prefix=start, **kwargs)
        return dict(self._requests.run(f"s3://{self._bucket}/{start}", call))

    def _pipe(self, key: str, data: bytes, **mode: str) -> None:
        condition = {"IfNoneMatch": "*"} if mode else {}
        self._call("put_object", key, len(data), Body=data, **condition)

    def _info(self, key: str) -> dict[str, Any] | None:
        try:
            reply = self._call("head_object", key)
        except FileNotFoundError:
            return None
        return {"type": "file", "size": reply["ContentLength"], "mark": reply.get("Metadata", {}).get(_MARK)}

    def _children(self, prefix: str) -> dict[str, str]:
        found, start = dict[str, str](), self._below(prefix)
        for page in self._pages(start, Delimiter="/"):
            found |= {entry["Key"][len(start) :]: "file" for entry in page.get("Contents", ())}
            found |= {entry["Prefix"][len(start) : -1]: "directory" for entry in page.get("CommonPrefixes", ())}
        found.pop("", None)  # some tools put an object there to mark a folder
        return found

    def _pages(self, start: str, **how: str) -> Iterator[dict[str, Any]]:
        position = dict[str, Any]()
        while True:
            yield (page := self._list("list_objects_v2", start, **how, **position))
            if not page.get("IsTruncated"):
                return
            position = {"ContinuationToken": page["NextContinuationToken"]}

    async def _get(self, key: str, target: memoryview | None = None, **extent: str) -> Any:
        """The bytes of an object, or, with ``target``, how many of them were put there."""
        reply = await self._prepare("get_object", key, **extent)()
        async with reply["Body"] as body:
            if target is None:
                refuse_large(self.locate(key), reply["ContentLength"])
                return await body.read()
            num_read = 0
            while block := await body.read(_READ_BYTES):
                if num_read + len(block) > target.nbytes:  # a server that ignores ranges
                    raise OSError(errno.ENOTSUP, "the server sends more than the range that was asked for")
                target[num_read : num_read + len(block)] = block
                num_read += len(block)
            return num_read

    def _with_parent(self, key: str, write: Any) -> Any:
        try:
            return write()
        except FileNotFoundError as error:  # there are no folders: it is the bucket
            text = f"{self.locate(key)}: the bucket {self._bucket} does not exist; create it first"
            raise FileNotFoundError(errno.ENOENT, text) from error


def _with_defaults(options: dict[str, Any]) -> dict[str, Any]:
    """One try a request, fit for many at once; what the user says goes first."""
    config = {
        "connect_timeout": 10,
        "read_timeout": PATIENCE.deadline_s,
        "max_pool_connections": _CONNECTIONS,
        "retries": {"total_max_attempts": 1},
        # TLS, or the signature where there is none, covers what is sent, and our digests what is read; servers that are
        # not AWS's often refuse the further checksums that botocore adds
        "request_checksum_calculation": "when_required",
        "response_checksum_validation": "when_required",
    }
    config |= options.get("config_kwargs") or {}
    # an instance of our own: s3fs shares one among all that give the same options, and its tries are set below
    return {"skip_instance_cache": True, **options, "config_kwargs": config}


def _reply(error: BaseException | None) -> dict[str, Any] | None:
    """What the server answered, when it is that which failed."""
    while error is not None:
        reply = getattr(error, "response", None)
        if isinstance(reply, dict):
            return reply
        error = error.__cause__
    return None


def _code(error: BaseException) -> str:
    reply = _reply(error)
    return str(reply["Error"].get("Code", "")) if reply is not None else ""


def _is_of_network(error: BaseException) -> bool:
    """Whether the way to the server failed; not what botocore refuses by itself, as for want of credentials."""
    from aiohttp import ClientError
    from botocore.exceptions import BotoCoreError, ConnectionError, HTTPClientError, IncompleteReadError

    if isinstance(error, (ClientError, ConnectionError, HTTPClientError, IncompleteReadError)):
        return True
    return is_transient(error) and not isinstance(error, BotoCoreError)


class _UploadSink(OrderedSink):
    """Uploads parts as they fill, straight from the caller's memory; a file of one part is a single request."""

    def __init__(self, store: S3Store, key: str, size_bytes: int) -> None:
        super().__init__(store.locate(key), size_bytes)
        self._store, self._key = store, key
        num_blocks = -(-size_bytes // (PART_BYTES * _MAX_PARTS))
        self._part_bytes = PART_BYTES * max(1, num_blocks)
        self._pieces: list[memoryview] = []
        self._filled_bytes = 0
        self._upload = ""
        self._num_begun = 0  # uploads that exist, perhaps: a reply that got lost has named one
        self._mark = secrets.token_hex(16)
        self._parts: list[Future[Any]] = []
        self._in_flight: set[Future[Any]] = set()

    def _append(self, piece: memoryview) -> None:
        while piece.nbytes:
            room_bytes = self._part_bytes - self._filled_bytes
            self._pieces.append(piece[:room_bytes])
            self._filled_bytes += self._pieces[-1].nbytes
            piece = piece[room_bytes:]
            if self._filled_bytes == self._part_bytes and self._size_bytes > self._part_bytes:
                self._send()

    def _send(self) -> None:
        if not self._upload:
            self._upload = self._store._run(self._key, self._begin)["UploadId"]
        self._await_room()
        call = self._prepare("upload_part", PartNumber=len(self._parts) + 1, Body=self._take())
        self._parts.append(self._store._requests.start(self._path, call, self._part_bytes))
        self._in_flight.add(self._parts[-1])

    def _begin(self) -> Any:
        self._num_begun += 1
        return self._store._prepare("create_multipart_upload", self._key, Metadata={_MARK: self._mark})()

    def _take(self) -> bytes:
        body, self._pieces, self._filled_bytes = b"".join(self._pieces), [], 0
        return body

    def _await_room(self) -> None:
        """Wait until one more part may be sent; a part that has failed ends it."""
        is_full = len(self._in_flight) >= PARTS_AT_ONCE
        done, self._in_flight = wait(self._in_flight, None if is_full else 0, FIRST_COMPLETED)
        for part in done:
            part.result()

    def _prepare(self, method: str, **kwargs: Any) -> Any:
        return self._store._prepare(method, self._key, UploadId=self._upload, **kwargs)

    def _finish(self) -> None:
        if not self._upload:
            self._store.put(self._key, self._take())
            return
        if self._pieces:
            self._send()
        tags = [{"PartNumber": number, "ETag": part.result()["ETag"]} for number, part in enumerate(self._parts, 1)]
        try:
            self._store._run(self._key, self._prepare("complete_multipart_upload", MultipartUpload={"Parts": tags}))
        except OSError:
            if not self._is_there():
                raise
        if self._num_begun > 1:
            self._abandon()

    def _is_there(self) -> bool:
        """Whether the object is the one of this upload: the reply to its completion can get lost."""
        with contextlib.suppress(OSError):
            info = self._store._info(self._key)
            return info is not None and (info["mark"], info["size"]) == (self._mark, self._size_bytes)
        return False

    def _abort(self) -> None:
        self._pieces = []
        self._early.clear()
        for part in self._parts:
            part.cancel()
        if self._num_begun:
            self._abandon()

    def _abandon(self) -> None:
        """Drop every unfinished upload of this file: ours, and those that we were not told of."""
        try:
            if self._upload and self._num_begun == 1:
                self._store.drop_upload(self._key, self._upload)
                return
            for key, upload in list(self._store.uploads(self._store.object_name(self._key))):
                if key == self._key:
                    self._store.drop_upload(key, upload)
        except OSError as error:
            text = "an unfinished upload is left, which the next start of the job abandons"
            _log.warning("%s: %s: %s", self._path, text, error)
