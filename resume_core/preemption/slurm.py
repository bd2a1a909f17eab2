"""Jobs of SLURM that put themselves into the queue again (``scontrol requeue``, see scontrol(1))."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import time
from collections.abc import Mapping

__all__ = ["job_id", "requeue", "seconds_left"]

_INTERACTIVE = ("bash", "interactive", "zsh", "sh")  # names of jobs that somebody sits in front of
_TIMEOUT_S = 20.0


def job_id(environ: Mapping[str, str] = os.environ) -> str | None:
    """The batch job of SLURM's that this process belongs to, an element of an array by its place; None outside one."""
    job, name = environ.get("SLURM_JOB_ID"), environ.get("SLURM_JOB_NAME")
    if not job or name in _INTERACTIVE:
        return None
    array, place = environ.get("SLURM_ARRAY_JOB_ID"), environ.get("SLURM_ARRAY_TASK_ID")
    return f"{array}_{place}" if array and place else job


def seconds_left() -> float | None:
    """Until the job of SLURM's ends by its time limit, as far as SLURM tells (since version 22.05)."""
    end = os.environ.get("SLURM_JOB_END_TIME", "")
    return int(end) - time.time() if os.environ.get("SLURM_JOB_ID") and end.isdecimal() else None


def requeue(job: str, log: logging.Logger) -> bool:
    """Put ``job`` into the queue again. What stands in the way is said: the run is saved in any case.

    Returns:
        Whether SLURM took it.
    """
    advice = f"the run is saved; put the job into the queue yourself: scontrol requeue {job}"
    command = shutil.which("scontrol")
    if command is None:
        log.warning("SLURM job %s is not requeued: there is no scontrol here, as in most containers; %s", job, advice)
        return False
    try:
        done = subprocess.run(
            [command, "requeue", job], capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        log.warning("SLURM job %s is not requeued: %s; %s", job, error, advice)
        return False
    if done.returncode:
        said = (done.stderr or done.stdout).strip()
        log.warning("SLURM job %s is not requeued: scontrol said %r (%d); %s", job, said, done.returncode, advice)
        return False
    log.warning("SLURM job %s is in the queue again", job)
    return True
