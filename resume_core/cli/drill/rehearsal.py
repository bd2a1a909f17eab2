"""The rehearsal itself: the user's command, told by its environment that it rehearses, and what it reports."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from resume_core.cli.names import open_named, open_run
from resume_core.drill import FILE, URL
from resume_core.naming import resolve
from resume_core.storage import open_store

__all__ = ["Rehearsed", "rehearse"]

_GRACE_S = 35.0  # torchrun gives the processes that it has started 30 s, and kills them then


@dataclass(frozen=True)
class Rehearsed:
    """How it went.

    Attributes:
        code: that the command ended with; None where it took too long and was killed.
        seconds: of all of it.
        first_step_s: from the start of the command until its first batch was trained on; None when that never came.
        result: of the check, see `resume_core.evidence.checker.merge_results`; empty when there is none.
    """

    code: int | None
    seconds: float
    first_step_s: float | None
    result: Mapping[str, Any]


def rehearse(
    url: str,
    command: Sequence[str],
    *,
    checkpoint: str | None,
    options: Mapping[str, Any],
    timeout_s: float | None,
    quiet: bool,
) -> Rehearsed:
    """Run ``command`` as a rehearsal of a run.

    Args:
        url: the run's directory.
        command: of the user's, with its arguments.
        checkpoint: the name of one that is gone on from; None for the newest.
        options: for fsspec, to name the directory as the script does.
        timeout_s: after which the command is killed.
        quiet: what it prints goes to the standard error output.

    Raises:
        CheckpointNotFoundError: there is no such run, or ``checkpoint`` is not in it.
        OSError: the command cannot be started.
        ValueError: an unusable ``url``.
    """
    open_run(url, None, options)
    if checkpoint is not None:
        checkpoint = resolve(*open_named(url, checkpoint, None, options)).path
    with tempfile.TemporaryDirectory(prefix="exact-resume-drill-") as folder:
        file = Path(folder) / "result.json"
        environment = {
            **os.environ,
            FILE: str(file),
            URL: open_store(url, dict(options)).url,
            "EXACT_RESUME": checkpoint or "must",
            "EXACT_RESUME_NOTICES": "off",
        }
        start, start_s = time.time(), time.monotonic()
        output = 2 if quiet else None
        with (
            _ending_at_sigterm(),
            subprocess.Popen(command, env=environment, stdout=output, start_new_session=True) as process,
        ):
            code = _wait(process, timeout_s)
        result = json.loads(file.read_text()) if file.exists() else {}
    first_step = result.pop("first_step", None)
    first_step_s = None if first_step is None else max(first_step - start, 0.0)
    return Rehearsed(code, time.monotonic() - start_s, first_step_s, result)


def _wait(process: subprocess.Popen[bytes], timeout_s: float | None) -> int | None:
    """Its exit code; it and all that it has started end when it takes too long, or we are interrupted."""
    try:
        return process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        _kill(process)
        return None
    except BaseException:
        _kill(process)
        raise


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Asked first: launchers start processes in sessions of their own, which they alone can end."""
    try:
        _send(process, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_S)
    finally:
        _send(process, getattr(signal, "SIGKILL", signal.SIGTERM))
        process.wait()


def _send(process: subprocess.Popen[bytes], number: int) -> None:
    with contextlib.suppress(OSError):  # it is over
        if hasattr(os, "killpg"):
            os.killpg(process.pid, number)
        else:
            process.terminate()


@contextlib.contextmanager
def _ending_at_sigterm() -> Iterator[None]:
    """Cron and CI end us by it, and the command must end with us."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)
