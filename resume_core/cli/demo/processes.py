"""The processes of the demo: each start of the training is a fresh interpreter in a process group of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import resume_core
from resume_core.cli.demo.compare import parse_lines

__all__ = ["Child", "Children", "DemoError", "Job"]

_POLL_S = 0.004  # a batch takes about as long
_DEADLINE_S = 300
_LOG_LINES = 25
# environment of the caller's own jobs, which would steer the training
_FOREIGN = ("EXACT_RESUME", "PL_", "SLURM_", "ACCELERATE_")


class DemoError(Exception):
    """The demo could not be carried out; its message is for the terminal."""


@dataclass(frozen=True)
class Job:
    """One start of a training, as the modules of `resume_core.cli.demo.trainings` read it.

    Attributes:
        module: that trains.
        folder: of the run.
        name: of this start.
        plugin: False for the framework alone.
        seed: global seed.
        epochs: of the whole run.
        save_steps: optimizer steps between saves.
    """

    module: str
    folder: str
    name: str
    plugin: bool
    seed: int
    epochs: int
    save_steps: int


class Child:
    """A process that trains.

    Args:
        job: what it does.

    Attributes:
        folder: of its run.
        name: of the start.
        lines: what it has written so far.
        killed: whether it was killed on purpose.
    """

    def __init__(self, job: Job) -> None:
        self.folder, self.name = Path(job.folder), job.name
        self._log = self.folder / f"{job.name}.log"
        self.killed = False
        self._unread = ""
        self.lines: list[dict[str, Any]] = []
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", job.module, json.dumps(asdict(job))],
                cwd=self.folder,  # "-m" looks for modules there first, so it must be a folder of ours
                env=_environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._steps = (self.folder / f"{job.name}.jsonl").open("a+")

    @property
    def running(self) -> bool:
        """Whether it has not ended yet."""
        return self._process.poll() is None

    def update(self) -> None:
        """Take in the lines that it has written since."""
        self._unread += self._steps.read()
        self.lines += parse_lines(self._unread)
        self._unread = self._unread.rpartition("\n")[2]

    def check(self) -> None:
        """Look whether it is well.

        Raises:
            DemoError: it ended with an error; the end of its log is in the message.
        """
        code = self._process.poll()
        if code and not self.killed:
            raise DemoError(f"{self.folder.name}, {self.name} ended with exit code {code}\n\n{self._end_of_log()}")

    def _end_of_log(self) -> str:
        lines = self._log.read_text(errors="replace").splitlines()[-_LOG_LINES:]
        return "\n".join([*lines, "", f"all of it: {self._log}"])

    @contextmanager
    def held(self) -> Iterator[None]:
        """Stop it, so that what is found true of it stays true; it goes on afterwards, unless it was killed."""
        self._signal(signal.SIGSTOP)
        # the signal is on its way until the parent is told that it arrived
        _, status = os.waitpid(self._process.pid, os.WUNTRACED)
        if not os.WIFSTOPPED(status):  # it had ended before, and whoever waits for that is told once
            self._process.returncode = os.waitstatus_to_exitcode(status)
        self.update()
        try:
            yield
        finally:
            if self.running:
                self._signal(signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL to the process and its loader workers at once, as when a machine is taken away."""
        self.killed = True
        self._signal(signal.SIGKILL)
        self._process.wait()

    def _signal(self, number: signal.Signals) -> None:
        os.killpg(self._process.pid, number)

    def close(self) -> None:
        """End it if it has not ended."""
        if self.running:
            self.kill()
        self._steps.close()

    def end(self) -> dict[str, Any]:
        """What it reported when it had finished."""
        found: dict[str, Any] = json.loads((self.folder / f"{self.name}.json").read_text())
        return found


class Children:
    """All processes of a demo; none of them survives the ``with`` block."""

    def __init__(self) -> None:
        self._all: list[Child] = []

    def __enter__(self) -> Children:
        return self

    def __exit__(self, *raised: object) -> None:
        for child in self._all:
            child.close()

    def start(self, job: Job) -> Child:
        """Begin a training, or go on with it."""
        Path(job.folder).mkdir(exist_ok=True)
        child = Child(job)
        self._all.append(child)
        return child

    def wait(self, child: Child, condition: Callable[[], bool] = lambda: False) -> bool:
        """Wait until ``condition`` holds for what ``child`` has written, or until it has ended.

        Returns:
            Whether the condition came to hold.

        Raises:
            DemoError: any process of the demo failed, or it took minutes.
        """
        deadline = time.monotonic() + _DEADLINE_S
        while True:
            running = child.running
            child.update()
            if condition():
                return True
            for each in self._all:
                each.check()
            if not running:
                return False
            if time.monotonic() > deadline:
                raise DemoError(f"{child.folder.name}, {child.name} took longer than {_DEADLINE_S} s")
            time.sleep(_POLL_S)


def _environment() -> dict[str, str]:
    """The caller's environment, without what would steer the training, and with this package to be found."""
    found = {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN)}
    root = str(Path(resume_core.__file__).resolve().parents[1])
    if root not in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib")):  # a checkout that is not installed
        found["PYTHONPATH"] = os.pathsep.join(filter(None, (root, found.get("PYTHONPATH"))))
    # the demo takes its machine away itself
    return found | {"OMP_NUM_THREADS": "1", "EXACT_RESUME_NOTICES": "off"}
