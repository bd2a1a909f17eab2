"""What the tests of runs that are told to leave share."""

from __future__ import annotations

import os
import signal
import time

import pytest

from resume_core import Preempted, SaveEvery

NEVER = SaveEvery(steps=1000, minutes=None)

PAUSE = "validation"


def send(number=signal.SIGTERM):
    os.kill(os.getpid(), number)
    time.sleep(0)  # a handler runs between two instructions


def leaves(run, num_steps=1, **progress):
    with pytest.raises(Preempted) as left:
        run.train(num_steps, **progress)
    run.session.end(left.value)
    return left.value.code


def left_behind(run, num_steps):
    """The batch at which a run that trains on has left, None where it did not; no save is waited for meanwhile."""
    try:
        run.train(num_steps, settle=False)
    except Preempted as left:
        run.session.end(left)
        return run.num
    return None
