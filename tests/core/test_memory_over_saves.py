"""A hundred saves hold one arena, and no more than five."""

from __future__ import annotations

import re
import shutil
import tempfile
from pathlib import Path

import harness
import pytest
import torch
from walks import Start, Walk

from resume_core.state import Progress, State

STATE_BYTES = 16 << 20
FIRST_BYTES = 9 << 20  # what the first saves import and make once, and the threads that write have
SLACK_BYTES = 2 << 20  # what the interpreter and malloc take and give back as they like


class Large(Walk):
    def __init__(self, *args):
        super().__init__(*args)
        self.tensors = {str(number): torch.ones(STATE_BYTES // 48 // 4) for number in range(48)}

    def capture(self):
        return State(model=self.tensors, training={}, rank={"own": self.own})


def held_bytes():
    """What this process has in memory, the arena among it."""
    return int(re.search(r"^Rss:\s+(\d+) kB", Path("/proc/self/smaps_rollup").read_text(), re.M)[1]) * 1024


def _hundred_saves(root, pipe):
    torch.set_num_threads(1)
    _, session = Start(root).session()
    large = Large(session._framework.ranks, {})
    session._framework = large
    session.start(7)
    found = [held_bytes()]
    session.begin(Progress())
    for number in range(1, 101):
        session.wait()
        session.boundary(Progress(step=number, batch=number))
        if number in (5, 100):
            session.wait()
            found.append(held_bytes())
    session.end()
    pipe.send(found)


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="what a process holds is told by Linux")
def test_memory_stays_at_one_arena_over_a_hundred_saves(tmp_path):
    shared = Path("/dev/shm")
    enough = shared.is_dir() and shutil.disk_usage(shared).free > 8 * STATE_BYTES
    with tempfile.TemporaryDirectory(dir=shared if enough else tmp_path) as root:
        ours, theirs = harness.CONTEXT.Pipe()
        process = harness.CONTEXT.Process(target=_hundred_saves, args=(Path(root), theirs))
        process.start()
        theirs.close()
        assert ours.poll(240)
        before, after_5, after_100 = ours.recv()
        process.join(harness.DEADLINE_S)
    assert process.exitcode == 0
    assert after_5 - before < 1.05 * STATE_BYTES + FIRST_BYTES
    assert after_100 - after_5 < SLACK_BYTES
