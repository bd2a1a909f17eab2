"""Commands of the examples, run as a supervisor runs them, with ours first on the path."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
DEADLINE_S = 240


def start(command, log, *, path=(), **environment):
    """In the root of the checkout; what it says goes on in ``log``."""
    folders = [*map(str, path), str(Path(sys.executable).parent), os.environ["PATH"]]
    known = {**os.environ, "PATH": os.pathsep.join(folders), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    with log.open("ab") as file:
        return subprocess.Popen(command, cwd=ROOT, env={**known, **environment}, stdout=file, stderr=file)


def finish(process, log, code=0):
    """Wait for it; gives the sums that it has printed."""
    try:
        found = process.wait(DEADLINE_S)
    finally:
        process.kill()
    assert found == code, log.read_text()[-6000:]
    return re.findall(r"sum of all weights: (\S+)", log.read_text())


def saved(run):
    """Steps of the checkpoints that are committed."""
    return {int(path.parent.name[5:14]) for path in run.glob("attempt-*/step-*/manifest.json")}


def wait_until(there, process, log):
    deadline = time.monotonic() + DEADLINE_S
    while not there():
        if process.poll() is not None or time.monotonic() > deadline:
            process.terminate()  # and what it has started
            process.wait(DEADLINE_S)
            pytest.fail(f"it never came\n{log.read_text()[-6000:]}")
        time.sleep(0.02)
