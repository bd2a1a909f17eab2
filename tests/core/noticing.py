"""What the tests of notices share."""

from __future__ import annotations

import logging
import socket
import time

from servers.metadata import Aws, Azure, Gcp

LOG = logging.getLogger("exact_resume")
CLOUDS = {"aws": Aws, "gcp": Gcp, "azure": Azure}


def wait_for(condition):
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.005)


def looked(server, num=5):
    """The server is asked so many times more: what is asked once at first, and at least one whole look."""
    server.asked.clear()
    wait_for(lambda: len(server.asked) >= num)


def notice(watch):
    wait_for(lambda: watch.at_once is not None)
    return watch.at_once


def closed_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]
