"""S3 clients, each the way it moves objects fastest: what `objectstore.py` compares."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

PART_BYTES = 16 * 1024 * 1024
AT_ONCE = 8


class Client(ABC):
    """One client, on one bucket of a server that speaks S3 over plain HTTP.

    Args:
        bucket: exists.
        key: access key.
        secret: that of the key.
        endpoint_url: of the server.

    Attributes:
        name: of its row.
    """

    name: str

    def __init__(self, bucket: str, *, key: str, secret: str, endpoint_url: str) -> None:
        self.bucket, self.key, self.secret, self.endpoint_url = bucket, key, secret, endpoint_url
        self.open()

    @abstractmethod
    def open(self) -> None:
        """Make the client."""

    @abstractmethod
    def put(self, name: str, data: memoryview) -> None:
        """Upload one object from memory."""

    @abstractmethod
    def get(self, name: str, target: memoryview) -> None:
        """Download one object into memory that is there."""

    def put_all(self, objects: Mapping[str, memoryview]) -> None:
        """Upload many."""
        _each(self.put, objects.items())

    def get_all(self, targets: Mapping[str, memoryview]) -> None:
        """Download many."""
        _each(self.get, targets.items())


def _each(call: Any, items: Iterable[tuple[Any, ...]]) -> None:
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for future in [pool.submit(call, *item) for item in items]:
            future.result()


def _parts(target: memoryview) -> list[tuple[int, memoryview]]:
    return [(start, target[start : start + PART_BYTES]) for start in range(0, target.nbytes, PART_BYTES)]


class Ours(Client):
    name = "**exact-resume**"

    def open(self) -> None:
        from resume_core.storage import open_store

        options = {"key": self.key, "secret": self.secret, "endpoint_url": self.endpoint_url}
        self.store = open_store(f"s3://{self.bucket}/ours", options)

    def put(self, name: str, data: memoryview) -> None:
        with self.store.open_sink(name, data.nbytes) as sink:
            for start, piece in _parts(data):
                sink.write_at(start, piece)

    def get(self, name: str, target: memoryview) -> None:
        if target.nbytes <= PART_BYTES:
            self.store.read_into(name, 0, target)
        else:
            _each(lambda start, piece: self.store.read_into(name, start, piece), _parts(target))


class S3fs(Client):
    name = "s3fs `pipe`, `cat_file`"

    def open(self) -> None:
        from s3fs import S3FileSystem

        self.fs = S3FileSystem(
            key=self.key, secret=self.secret, endpoint_url=self.endpoint_url, skip_instance_cache=True
        )

    def put(self, name: str, data: memoryview) -> None:
        self.fs.pipe_file(f"{self.bucket}/s3fs/{name}", bytes(data))

    def get(self, name: str, target: memoryview) -> None:
        target[:] = self.fs.cat_file(f"{self.bucket}/s3fs/{name}")

    def put_all(self, objects: Mapping[str, memoryview]) -> None:
        self.fs.pipe({f"{self.bucket}/s3fs/{name}": bytes(data) for name, data in objects.items()})

    def get_all(self, targets: Mapping[str, memoryview]) -> None:
        for path, data in self.fs.cat([f"{self.bucket}/s3fs/{name}" for name in targets]).items():
            targets[path.rsplit("/", 1)[1]][:] = data


class S3fsOpen(S3fs):
    name = "s3fs `open`"

    def put(self, name: str, data: memoryview) -> None:
        with self.fs.open(f"{self.bucket}/open/{name}", "wb", block_size=PART_BYTES) as file:
            for _, piece in _parts(data):
                file.write(piece)

    def get(self, name: str, target: memoryview) -> None:
        with self.fs.open(f"{self.bucket}/open/{name}", "rb", block_size=PART_BYTES) as file:
            for _, piece in _parts(target):
                piece[:] = file.read(piece.nbytes)

    put_all, get_all = Client.put_all, Client.get_all


class Obstore(Client):
    name = "obstore"

    def open(self) -> None:
        import obstore
        from obstore.store import S3Store

        self.obstore = obstore
        self.store = S3Store(
            self.bucket,
            prefix="obstore",
            endpoint=self.endpoint_url,
            access_key_id=self.key,
            secret_access_key=self.secret,
            region="us-east-1",
            virtual_hosted_style_request=False,
            client_options={"allow_http": True, "timeout": "300s"},
        )

    def put(self, name: str, data: memoryview) -> None:
        self.obstore.put(self.store, name, data, chunk_size=PART_BYTES, max_concurrency=AT_ONCE)

    def get(self, name: str, target: memoryview) -> None:
        def part(start: int, piece: memoryview) -> None:
            piece[:] = memoryview(self.obstore.get_range(self.store, name, start=start, length=piece.nbytes))

        if target.nbytes <= PART_BYTES:
            part(0, target)
        else:
            _each(part, _parts(target))


class ObstoreFsspec(Client):
    name = "obstore through fsspec"

    def open(self) -> None:
        from obstore.fsspec import FsspecStore

        self.fs = FsspecStore(
            "s3",
            endpoint=self.endpoint_url,
            access_key_id=self.key,
            secret_access_key=self.secret,
            region="us-east-1",
            virtual_hosted_style_request=False,
            client_options={"allow_http": True, "timeout": "300s"},
        )

    def put(self, name: str, data: memoryview) -> None:
        self.fs.pipe_file(f"{self.bucket}/fsspec/{name}", data)

    def get(self, name: str, target: memoryview) -> None:
        target[:] = self.fs.cat_file(f"{self.bucket}/fsspec/{name}")


class PyArrow(Client):
    name = "pyarrow"

    def open(self) -> None:
        from pyarrow.fs import S3FileSystem

        scheme, host = self.endpoint_url.split("://")
        self.fs = S3FileSystem(
            access_key=self.key, secret_key=self.secret, endpoint_override=host, scheme=scheme, region="us-east-1"
        )

    def put(self, name: str, data: memoryview) -> None:
        with self.fs.open_output_stream(f"{self.bucket}/arrow/{name}") as file:
            for _, piece in _parts(data):
                file.write(piece)

    def get(self, name: str, target: memoryview) -> None:
        def part(start: int, piece: memoryview) -> None:
            piece[:] = memoryview(file.read_at(piece.nbytes, start))

        with self.fs.open_input_file(f"{self.bucket}/arrow/{name}") as file:
            if target.nbytes <= PART_BYTES:
                part(0, target)
            else:
                _each(part, _parts(target))


class Boto3(Client):
    name = "boto3"

    def open(self) -> None:
        import boto3
        from botocore.config import Config

        self.client = boto3.client(
            "s3",
            aws_access_key_id=self.key,
            aws_secret_access_key=self.secret,
            endpoint_url=self.endpoint_url,
            region_name="us-east-1",
            config=Config(max_pool_connections=AT_ONCE),
        )

    def put(self, name: str, data: memoryview) -> None:
        from io import BytesIO

        self.client.upload_fileobj(BytesIO(data), self.bucket, f"boto3/{name}", Config=self._transfer())

    def get(self, name: str, target: memoryview) -> None:
        from io import BytesIO

        buffer = BytesIO()
        self.client.download_fileobj(self.bucket, f"boto3/{name}", buffer, Config=self._transfer())
        target[:] = buffer.getbuffer()

    def _transfer(self) -> Any:
        from boto3.s3.transfer import TransferConfig

        return TransferConfig(multipart_chunksize=PART_BYTES, max_concurrency=AT_ONCE)


CLIENTS: dict[str, type[Client]] = {
    "ours": Ours,
    "s3fs": S3fs,
    "s3fs-open": S3fsOpen,
    "obstore": Obstore,
    "obstore-fsspec": ObstoreFsspec,
    "pyarrow": PyArrow,
    "boto3": Boto3,
}
