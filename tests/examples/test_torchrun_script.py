"""The script for torchrun, run by it: a rank is killed, then the script is asked to leave, then started again."""

from __future__ import annotations

import os
import re
import signal

import psutil
import pytest
import supervisors

from resume_core import Preemption

SCRIPT = supervisors.EXAMPLES / "torchrun.sh"


def start(run, log):
    return supervisors.start([SCRIPT, run, "4"], log, GLOO_SOCKET_IFNAME="lo")


def ranks(process):
    """Processes of the training itself, the first rank first; DataLoader workers are their children."""
    (torchrun,) = [each for each in psutil.Process(process.pid).children() if "torchrun" in " ".join(each.cmdline())]
    return sorted(torchrun.children(), key=lambda each: int(each.environ()["RANK"]))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_ranks_are_started_again_and_a_script_that_was_asked_to_leave_says_so(tmp_path):
    log = tmp_path / "whole.log"
    expected = supervisors.finish(start(tmp_path / "whole", log), log)
    assert len(expected) == 1
    run, log = tmp_path / "run", tmp_path / "run.log"
    script = start(run, log)
    supervisors.wait_until(lambda: 50 in supervisors.saved(run), script, log)
    ranks(script)[1].send_signal(signal.SIGKILL)
    supervisors.wait_until(lambda: "resumed at step 50" in log.read_text(), script, log)
    supervisors.wait_until(lambda: len(list(run.glob("attempt-*/attempt.json"))) == 2, script, log)
    os.kill(script.pid, signal.SIGTERM)
    assert supervisors.finish(script, log, code=Preemption().exit_code) == []
    (left,) = re.findall(r"SIGTERM on rank \d: the run is saved at step (\d+)", log.read_text())
    assert supervisors.finish(start(run, log), log) == expected
    assert re.findall(r"resumed at step (\d+)", log.read_text()) == ["50", left]
