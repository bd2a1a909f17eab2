"""A proxy in front of an HTTP server that breaks the requests a test picks, and counts all of them."""

from __future__ import annotations

import asyncio
import re
import socket
import struct
import threading
from asyncio import StreamReader, StreamWriter
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from urllib.parse import parse_qs, unquote, urlsplit

_BLOCK_BYTES = 64 * 1024
_LIMIT_BYTES = 1024 * 1024
_STATUS = {
    500: ("Internal Server Error", "InternalError"),
    503: ("Slow Down", "SlowDown"),
    403: ("Forbidden", "AccessDenied"),
}


@dataclass(frozen=True)
class Fault:
    """What happens to a request. The first that is set, in this order; ``bytes_per_s`` goes with each.

    Attributes:
        hang: it is taken and never answered.
        status: it does not reach the server; the answer is this status.
        reset_after_bytes: the connection breaks after so many bytes of the body; with 0 the server hears of nothing.
        lose_reply: the server does it, and the connection breaks before the answer.
        truncate_after_bytes: the connection ends after so many bytes of the body of the answer.
        bytes_per_s: pace of the link, both ways.
    """

    hang: bool = False
    status: int | None = None
    reset_after_bytes: int | None = None
    lose_reply: bool = False
    truncate_after_bytes: int | None = None
    bytes_per_s: float | None = None


@dataclass(frozen=True)
class Request:
    """The head of a request."""

    head: bytes

    @property
    def method(self) -> str:
        return self.head.split(b" ", 1)[0].decode()

    @property
    def key(self) -> str:
        """Bucket and key."""
        return unquote(urlsplit(self._target).path).lstrip("/")

    @property
    def size_bytes(self) -> int:
        return _length(self.head) or 0

    @property
    def expects_go_ahead(self) -> bool:
        return b"100-continue" in self.head.lower()

    @property
    def operation(self) -> str:
        """What S3 calls it."""
        query = parse_qs(urlsplit(self._target).query, keep_blank_values=True)
        if "uploads" in query:
            return "CreateMultipartUpload" if self.method == "POST" else "ListMultipartUploads"
        if "uploadId" in query:
            names = {"PUT": "UploadPart", "POST": "CompleteMultipartUpload", "DELETE": "AbortMultipartUpload"}
            return names[self.method]
        if "list-type" in query:
            return "ListObjects"
        return {"PUT": "PutObject", "GET": "GetObject", "HEAD": "HeadObject", "DELETE": "DeleteObject"}[self.method]

    @property
    def _target(self) -> str:
        return self.head.split(b" ", 2)[1].decode()


Rule = Callable[[Request], Fault | None]


class FaultProxy:
    """The proxy; a context manager. Without a rule it passes everything on.

    Args:
        upstream_port: of the server, on this machine.

    Attributes:
        port: where it listens.
        rule: gives the fault of a request, None for none. Called once a request, in order.
        requests: all of them so far.
        most_at_once: of each operation, how many requests were under way at once.
    """

    def __init__(self, upstream_port: int) -> None:
        self._upstream_port = upstream_port
        self.rule: Rule = lambda request: None
        self.requests: list[Request] = []
        self.most_at_once: Counter[str] = Counter()
        self._under_way: Counter[str] = Counter()
        self.port = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def count(self) -> Counter[str]:
        """How many requests there were of each operation."""
        return Counter(request.operation for request in self.requests)

    def __enter__(self) -> FaultProxy:
        self._thread.start()
        serving = asyncio.start_server(self._serve, "127.0.0.1", 0, limit=_LIMIT_BYTES)
        self._server = asyncio.run_coroutine_threadsafe(serving, self._loop).result()
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end(self) -> None:
        self._server.close()
        await asyncio.sleep(0.01)  # a task that is cancelled before it has begun would close no connection
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        upstream: StreamWriter | None = None
        try:
            up_reader, upstream = await asyncio.open_connection("127.0.0.1", self._upstream_port, limit=_LIMIT_BYTES)
            exchange = _Exchange(reader, writer, up_reader, upstream)
            while await self._one(exchange):
                pass
        except (asyncio.IncompleteReadError, OSError):
            _reset(writer)
        except asyncio.CancelledError:
            pass  # the proxy ends; a task that ends cancelled would be reported
        finally:
            for each in (writer, upstream):
                if each is not None:
                    each.close()

    async def _one(self, exchange: _Exchange) -> bool:
        """One request and its answer; False when the connection is at its end."""
        request = Request(await exchange.reader.readuntil(b"\r\n\r\n"))
        self.requests.append(request)
        name = request.operation
        self._under_way[name] += 1
        self.most_at_once[name] = max(self.most_at_once[name], self._under_way[name])
        try:
            return await exchange.run(request, self.rule(request) or Fault())
        finally:
            self._under_way[name] -= 1


@dataclass(frozen=True)
class _Exchange:
    reader: StreamReader
    writer: StreamWriter
    up_reader: StreamReader
    up_writer: StreamWriter

    async def run(self, request: Request, fault: Fault) -> bool:
        if fault.hang:
            await asyncio.sleep(3600)
        if fault.status is not None:
            return await self._refuse(request, fault.status)
        if not await self._pass_request(request, fault):
            return False
        head = await self.up_reader.readuntil(b"\r\n\r\n")
        if fault.lose_reply:
            _reset(self.writer)
            return False
        return await self._pass_reply(request, head, fault)

    async def _refuse(self, request: Request, status: int) -> bool:
        if not request.expects_go_ahead:
            await self.reader.readexactly(request.size_bytes)
        text, code = _STATUS[status]
        body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>injected</Message></Error>"
        head = f"HTTP/1.1 {status} {text}\r\nContent-Type: application/xml\r\nConnection: close\r\n"
        self.writer.write(
            f"{head}Content-Length: {len(body)}\r\n\r\n{'' if request.method == 'HEAD' else body}".encode()
        )
        await self.writer.drain()
        return False

    async def _pass_request(self, request: Request, fault: Fault) -> bool:
        if fault.reset_after_bytes == 0:
            _reset(self.writer)
            return False
        self.up_writer.write(request.head)
        if request.expects_go_ahead:
            answer = await self.up_reader.readuntil(b"\r\n\r\n")
            self.writer.write(answer)
            if _status(answer) != 100:
                return False
        limit_bytes = fault.reset_after_bytes
        size_bytes = request.size_bytes if limit_bytes is None else min(request.size_bytes, limit_bytes)
        await _copy(self.reader, self.up_writer, size_bytes, fault.bytes_per_s)
        if limit_bytes is not None:
            _reset(self.writer)
            _reset(self.up_writer)
        return limit_bytes is None

    async def _pass_reply(self, request: Request, head: bytes, fault: Fault) -> bool:
        self.writer.write(head)
        size_bytes, limit_bytes = _length(head), fault.truncate_after_bytes
        if request.method == "HEAD" or _status(head) in (204, 304):
            size_bytes = 0
        if size_bytes is None:
            await self._pass_chunks()
        else:
            await _copy(self.up_reader, self.writer, min(size_bytes, limit_bytes or size_bytes), fault.bytes_per_s)
        await self.writer.drain()
        return limit_bytes is None

    async def _pass_chunks(self) -> None:
        size_bytes = 1
        while size_bytes:
            line = await self.up_reader.readuntil(b"\r\n")
            size_bytes = int(line.split(b";")[0], 16)
            self.writer.write(line + await self.up_reader.readexactly(size_bytes + 2))
            await self.writer.drain()


async def _copy(reader: StreamReader, writer: StreamWriter, size_bytes: int, bytes_per_s: float | None) -> None:
    while size_bytes:
        block = await reader.read(min(size_bytes, _BLOCK_BYTES))
        if not block:
            raise ConnectionResetError
        writer.write(block)
        await writer.drain()
        size_bytes -= len(block)
        if bytes_per_s is not None:
            await asyncio.sleep(len(block) / bytes_per_s)


def _reset(writer: StreamWriter) -> None:
    with suppress(OSError):
        connection = writer.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


def _length(head: bytes) -> int | None:
    match = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
    return int(match[1]) if match else None


def _status(head: bytes) -> int:
    return int(head.split(b" ", 2)[1])
