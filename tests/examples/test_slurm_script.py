"""The batch script for SLURM, run without it: scripts stand for its tools, and the test for SLURM itself."""

from __future__ import annotations

import os
import re
import signal

import pytest
import supervisors

from resume_core import Preemption

SCRIPT = supervisors.EXAMPLES / "slurm.sbatch"
JOB = {"SLURM_JOB_ID": "41", "SLURM_JOB_NAME": "digits", "SLURM_CPUS_PER_TASK": "4", "EPOCHS": "2"}


@pytest.fixture
def tools(tmp_path):
    """A folder with ``srun``, which notes the process of the step, and ``scontrol``, which notes what it is asked."""
    folder = tmp_path / "bin"
    folder.mkdir()
    texts = {
        "srun": f'echo $$ > {tmp_path}/step; test "$1" = --cpus-per-task=4 && shift && exec "$@"',
        "scontrol": f'echo "$@" >> {tmp_path}/asked',
    }
    for name, text in texts.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    return folder


def start(tmp_path, tools, name, **environment):
    run, log = tmp_path / name, tmp_path / f"{name}.log"
    process = supervisors.start(["bash", SCRIPT], log, path=[tools], RUN=str(run), **JOB | environment)
    return process, run, log


def test_a_job_that_is_signalled_is_requeued_once_and_ends_as_one_that_was_not(tmp_path, tools):
    whole, _, log = start(tmp_path, tools, "whole")
    expected = supervisors.finish(whole, log)
    job, run, log = start(tmp_path, tools, "run")
    supervisors.wait_until(lambda: max(supervisors.saved(run), default=0) >= 50, job, log)
    os.kill(int((tmp_path / "step").read_text()), signal.SIGUSR1)  # as --signal=USR1 does, not to the shell
    assert supervisors.finish(job, log, code=Preemption().exit_code) == []
    assert (tmp_path / "asked").read_text() == "requeue 41\n"
    again, _, log = start(tmp_path, tools, "run", SLURM_RESTART_COUNT="1")  # the log goes on
    assert supervisors.finish(again, log) == expected != []
    (left,) = re.findall(r"SIGUSR1: the run is saved at step (\d+)", log.read_text())
    assert re.findall(r"resumed at step (\d+)", log.read_text()) == [left]
    assert (tmp_path / "asked").read_text() == "requeue 41\n"
