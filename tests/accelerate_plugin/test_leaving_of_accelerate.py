"""Signals that come where a script reaches no boundary for longer than the machine lives after one."""

from __future__ import annotations

import os
import signal
import time

import pytest
import torch
from small_runs import make_loader, new_run, train

from accelerate_resume import Preemption, SaveEvery
from resume_core.errors import Preempted

EVERY = 2  # batches between evaluations; 4 are in an epoch


class Script:
    """Evaluates behind every second batch and at the end of each epoch; in one of those comes a signal."""

    def __init__(self, directory, *, in_loop, asked_at=None):
        policy = Preemption(grace_s=0.1)
        self.accelerator, self.resume, *self.parts = new_run(directory, save=SaveEvery(minutes=None), preemption=policy)
        self.evaluated = self.accelerator.prepare(make_loader(4, shuffle=False))
        self.in_loop, self.asked_at, self.seen = in_loop, asked_at, []
        self.counters = self.resume.counters(done=0)

    def evaluate(self):
        self.seen.append(self.counters.done)
        with torch.no_grad():
            for _ in self.evaluated:
                time.sleep(0.1)
                if self.counters.done == self.asked_at:
                    os.kill(os.getpid(), signal.SIGTERM)
                    time.sleep(20)

    def run(self):
        model, optimizer, loader = self.parts
        for _ in self.resume.epochs(4):
            for batch in loader:
                train(self.accelerator, model, optimizer, batch)
                self.counters.done += 1
                if self.in_loop and self.counters.done % EVERY == 0:
                    self.evaluate()
            if not self.in_loop:
                self.evaluate()
        return self.seen


# what is measured once is met from the second time on; in a loop it takes two to know when the next one comes
@pytest.mark.parametrize(("in_loop", "asked_at", "saved"), [(False, 8, 8), (True, 6, 5), (True, 8, 7)])
def test_a_signal_in_a_long_evaluation_ends_a_run_at_once_that_is_saved(tmp_path, in_loop, asked_at, saved, caplog):
    with pytest.raises(Preempted):
        Script(tmp_path / "run", in_loop=in_loop, asked_at=asked_at).run()
    assert "SIGTERM: the run was saved before this " in caplog.text
    newest = max(path.parent.name for path in tmp_path.glob("run/*/*/manifest.json"))
    assert newest == f"step-{saved:09d}"
    again = Script(tmp_path / "run", in_loop=in_loop).run()
    assert again == list(range(asked_at, 17, 4 if not in_loop else EVERY))


def test_one_that_came_unforeseen_is_brought_to_its_end(tmp_path, monkeypatch):
    monkeypatch.setattr(time, "sleep", lambda seconds, plain=time.sleep: plain(min(seconds, 0.2)))
    script = Script(tmp_path / "run", in_loop=True, asked_at=2)
    with pytest.raises(Preempted):
        script.run()
    assert (script.seen, script.counters.done) == ([2], 2)
    newest = max(path.parent.name for path in tmp_path.glob("run/*/*/manifest.json"))
    assert newest == "step-000000002"
