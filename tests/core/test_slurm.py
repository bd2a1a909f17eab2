"""Jobs of SLURM: which one this is, and what becomes of it when the run leaves. A script stands for ``scontrol``."""

from __future__ import annotations

import os
import signal

import pytest
from scratches import EVERY

from resume_core import Preempted, Preemption
from resume_core.preemption import job_id

JOB = {"SLURM_JOB_ID": "41", "SLURM_JOB_NAME": "train.sh"}


@pytest.fixture
def queue(tmp_path, monkeypatch):
    """What ``scontrol`` was asked for; ``answers`` makes it do something else."""

    class Queue:
        record = tmp_path / "asked"

        def answers(self, script):
            tool = tmp_path / "bin" / "scontrol"
            tool.parent.mkdir(exist_ok=True)
            tool.write_text(f'#!/bin/sh\necho "$@" >> {self.record}\n{script}\n')
            tool.chmod(0o755)

        @property
        def asked(self):
            return self.record.read_text().splitlines() if self.record.exists() else []

    for name, value in JOB.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    queue = Queue()
    queue.answers("exit 0")
    return queue


def leave(start, directory, number=signal.SIGUSR1, **chosen):
    run = start(directory, save=EVERY, preemption=Preemption(**chosen)).train(1)
    os.kill(os.getpid(), number)
    with pytest.raises(Preempted) as left:
        run.train(1)
    run.session.end(left.value)


def test_the_job_is_requeued_once_when_the_run_is_saved(tmp_path, start, queue):
    leave(start, tmp_path / "run")
    assert queue.asked == ["requeue 41"]
    again = start(tmp_path / "run", save=EVERY)
    assert again.restored.progress.step == 2
    again.session.end()


def test_a_job_that_is_cancelled_or_told_not_to_is_not(tmp_path, start, queue):
    leave(start, tmp_path / "run", signal.SIGTERM)
    leave(start, tmp_path / "run", requeue=False)
    assert queue.asked == []


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo Requested operation is presently disabled >&2; exit 1", "presently disabled"),
        (None, "there is no scontrol here"),
    ],
)
def test_what_stands_in_the_way_is_said_and_the_run_is_saved(tmp_path, start, queue, monkeypatch, caplog, script, said):
    if script is None:
        monkeypatch.setenv("PATH", str(tmp_path))
    else:
        queue.answers(script)
    leave(start, tmp_path / "run")
    assert said in caplog.text
    assert "scontrol requeue 41" in caplog.text
    again = start(tmp_path / "run", save=EVERY)
    assert again.restored.progress.step == 2
    again.session.end()


@pytest.mark.parametrize(
    ("environ", "job"),
    [
        (JOB, "41"),
        ({**JOB, "SLURM_ARRAY_JOB_ID": "40", "SLURM_ARRAY_TASK_ID": "3"}, "40_3"),
        ({**JOB, "SLURM_JOB_NAME": "interactive"}, None),
        ({}, None),
    ],
)
def test_which_job_this_is(environ, job):
    assert job_id(environ) == job
