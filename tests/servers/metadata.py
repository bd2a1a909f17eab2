"""The metadata services of the clouds, as strict as the real ones, on a port of this machine."""

from __future__ import annotations

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any
from urllib.parse import parse_qs, urlsplit

ROOT = "/latest/meta-data/"
TTL = "X-aws-ec2-metadata-token-ttl-seconds"


class MetadataServer:
    """One service; `answer` is what it says to a request, as status, body and headers.

    Attributes:
        asked: method and path of each request.
        broken: a status that every request gets, 0 for a request that is never answered; None for none of that.
    """

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.broken: int | None = None
        self._over = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                outer.asked.append(f"{self.command} {self.path}")
                if outer.broken == 0:
                    outer._over.wait(20)
                    return
                status, body, headers = (outer.broken, "broken", {}) if outer.broken else outer.answer(self)
                self.send_response(status)
                for name, value in {"Content-Length": str(len(body.encode())), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body.encode())

            do_GET = do_PUT = do_POST = answer

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))

    @property
    def base(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def answer(self, request: BaseHTTPRequestHandler) -> tuple[int, str, dict[str, str]]:
        raise NotImplementedError

    def __enter__(self) -> Any:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class Aws(MetadataServer):
    """IMDSv2: a token by PUT with its time to live, needed for all else; 404 until there is a notice."""

    action: str | None = None
    rebalance: str | None = None
    ttl_s = 21600

    def __init__(self) -> None:
        super().__init__()
        self.tokens: dict[str, float] = {}
        self.num_refused = 0

    def interrupt(self, in_s: float = 120.0, action: str = "terminate") -> None:
        when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + in_s))
        self.action = json.dumps({"action": action, "time": when})

    def answer(self, request: BaseHTTPRequestHandler) -> tuple[int, str, dict[str, str]]:
        if request.path == "/latest/api/token":
            asked = request.headers.get(TTL, "")
            if request.command != "PUT" or not asked.isdecimal() or not 1 <= int(asked) <= 21600:
                return 400, "", {}
            token = f"AQ{len(self.tokens)}=="
            self.tokens[token] = time.monotonic() + min(self.ttl_s, int(asked))
            return 200, token, {TTL: str(min(self.ttl_s, int(asked)))}
        if self.tokens.get(request.headers.get("X-aws-ec2-metadata-token", ""), 0) < time.monotonic():
            self.num_refused += 1
            return 401, "", {}
        known = {ROOT + "spot/instance-action": self.action, ROOT + "events/recommendations/rebalance": self.rebalance}
        found = known.get(request.path)
        return (404, "<html>Not Found</html>", {}) if found is None else (200, found, {})


class Gcp(MetadataServer):
    """A header in each request, and in each answer."""

    flavor = "Google"

    def __init__(self) -> None:
        super().__init__()
        self.values = {"preempted": "FALSE", "maintenance-event": "NONE"}

    def answer(self, request: BaseHTTPRequestHandler) -> tuple[int, str, dict[str, str]]:
        headers = {"Metadata-Flavor": self.flavor}
        if request.headers.get("Metadata-Flavor") != "Google" or request.command != "GET":
            return 403, "", headers
        value = self.values.get(request.path.removeprefix("/computeMetadata/v1/instance/"))
        return (404, "", headers) if value is None else (200, value, headers)


class Azure(MetadataServer):
    """A header, no proxy before it, and a version of the interface in each request."""

    machine = "trainer_3"

    def __init__(self) -> None:
        super().__init__()
        self.events: list[dict[str, Any]] = []

    def announce(self, kind: str, *machines: str, in_s: float | None = 30.0, name: str = "one") -> None:
        before = "" if in_s is None else time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(time.time() + in_s))
        self.events.append(
            {"EventId": name, "EventType": kind, "ResourceType": "VirtualMachine", "Resources": list(machines)}
            | {"EventStatus": "Scheduled" if before else "Started", "NotBefore": before, "EventSource": "Platform"}
        )

    def answer(self, request: BaseHTTPRequestHandler) -> tuple[int, str, dict[str, str]]:
        parts = urlsplit(request.path)
        query = parse_qs(parts.query)
        if (
            request.headers.get("Metadata") != "true"
            or request.headers.get("X-Forwarded-For")
            or request.command != "GET"
        ):
            return 400, '{"error": "Bad request"}', {}
        if parts.path == "/metadata/instance/compute/name" and query["format"] == ["text"] and query["api-version"]:
            return 200, self.machine, {}
        if parts.path == "/metadata/scheduledevents" and query["api-version"] == ["2020-07-01"]:
            return 200, json.dumps({"DocumentIncarnation": len(self.events), "Events": self.events}), {}
        return 404, "", {}


class Custom(MetadataServer):
    """An address of the user's own: whatever ``says`` has."""

    def __init__(self) -> None:
        super().__init__()
        self.says: tuple[int, str, dict[str, str]] = (404, "", {})

    def answer(self, request: BaseHTTPRequestHandler) -> tuple[int, str, dict[str, str]]:
        return self.says
