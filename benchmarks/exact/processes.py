"""Starts of a training: each a process of its own, killed from outside.

The processes are forked off a server that has imported the frameworks and has trained nothing: a start costs a second
that way, and what it knows it has read from its checkpoints.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from exact.job import Job
from exact.tools import TOOLS

DEADLINE_S = 90
HERE = Path(__file__).parents[1]
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")]))
MODULES = [
    "lightning.pytorch",
    "torchdata.stateful_dataloader",
    "lightning_resume.callback",
    "accelerate_resume.trainer",
]
OWN = ["exact.with_lightning", "exact.with_accelerate", "exact.with_trainer"]
_CONTEXT = multiprocessing.get_context("forkserver")


def preload() -> None:
    """Before the first start: have the server import the frameworks once."""
    _CONTEXT.set_forkserver_preload([*MODULES, *OWN])


class Failed(Exception):
    """A start did not do what it must; its message is the last line that it said."""


def _child(job: Job, port: int) -> None:
    multiprocessing.set_start_method("fork", force=True)  # of DataLoader workers, as in a plain script
    out = os.open(job.path("log"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.environ["EXACT_RESUME_NOTICES"] = "off"
    if job.num_processes > 1:
        os.environ |= {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "GLOO_SOCKET_IFNAME": "lo",
            "NODE_RANK": "0",
        }
        os.environ |= {"WORLD_SIZE": str(job.num_processes), "RANK": str(job.rank), "LOCAL_RANK": str(job.rank)}
        os.environ["LOCAL_WORLD_SIZE"] = str(job.num_processes)
    import torch

    torch.set_num_threads(1)  # sums are split over threads: any number would do, as long as it stays the same
    try:
        TOOLS[job.tool].train(job)
    except Exception as error:
        traceback.print_exc()
        job.path("error").write_text(f"{type(error).__name__}: {error}".strip())
        sys.stderr.flush()
        os._exit(1)


class Start:
    """The processes of one start.

    Args:
        job: that is started.
    """

    def __init__(self, job: Job) -> None:
        Path(job.folder).mkdir(parents=True, exist_ok=True)
        self.job = job
        self.jobs = [job.but(rank=rank) for rank in range(job.num_processes)]
        for each in self.jobs:
            for suffix in ("error", "paused", "go", "lines"):
                each.path(suffix).unlink(missing_ok=True)
        port = _free_port()
        self._processes = [_CONTEXT.Process(target=_child, args=(each, port)) for each in self.jobs]
        for process in self._processes:
            process.start()

    def wait(self, condition: Callable[[], bool], limit_s: float = DEADLINE_S) -> bool:
        """Until it holds; False when the processes have ended before, or never got there."""
        deadline = time.monotonic() + limit_s
        while not condition():
            if not any(process.is_alive() for process in self._processes):
                return condition()
            if time.monotonic() > deadline:
                return False
            time.sleep(0.01)
        return True

    def is_paused(self) -> bool:
        return all(job.path("paused").exists() for job in self.jobs)

    def kill(self) -> None:
        """SIGKILL for all of them."""
        for process in self._processes:
            if process.is_alive():
                os.kill(process.pid, signal.SIGKILL)
            process.join()

    def terminate(self) -> int | None:
        """SIGTERM, as before a machine goes; the exit code, None when it had to be killed."""
        for process in self._processes:
            os.kill(process.pid, signal.SIGTERM)
        for job in self.jobs:
            job.path("go").touch()
        return self._ended(DEADLINE_S / 6)

    def finish(self) -> None:
        """Until they end by themselves.

        Raises:
            Failed: with an error, or not at all.
        """
        code = self._ended(DEADLINE_S)
        if code != 0:
            raise Failed(_last_words(self.jobs, code))

    def _ended(self, deadline_s: float) -> int | None:
        deadline = time.monotonic() + deadline_s
        for process in self._processes:
            process.join(max(0.0, deadline - time.monotonic()))
        codes = [process.exitcode for process in self._processes]
        self.kill()
        return next((code for code in codes if code != 0), 0)


def _last_words(jobs: Sequence[Job], code: int | None) -> str:
    errors = [job.path("error").read_text() for job in jobs if job.path("error").exists()]
    return errors[0] if errors else f"did not end in {DEADLINE_S} s" if code is None else f"exit code {code}"


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def train(job: Job) -> Any:
    """Run to the end."""
    Start(job).finish()
