"""Runs whose machine is taken away by a notice: each start goes on where the last one left, and nothing is trained on
twice. The metadata service is a server on this machine."""

from __future__ import annotations

from contextlib import contextmanager

import harness
import pytest
from harness import batches
from servers.metadata import Gcp
from unscheduled import accelerate, lightning, trainer


@contextmanager
def cloud(root):
    with Gcp() as server:
        yield f"gcp={server.base}", lambda: server.values.update(preempted="TRUE"), "GCP preempts this instance"


@contextmanager
def file(root):
    path = root / "leave"
    yield str(path), lambda: path.write_text("drained"), f"the notice {path} (drained)"


@pytest.mark.parametrize(
    ("framework", "workers", "place"), [(lightning, 2, cloud), (accelerate, 0, cloud), (trainer, 2, file)]
)
def test_a_run_that_leaves_for_a_notice_ends_as_one_that_never_did(tmp_path, framework, workers, place):
    whole, start, train = framework(tmp_path, workers=workers, epochs=3)
    end = train(whole)
    left = whole.but(name="left", directory=str(tmp_path / "left"))
    with place(tmp_path) as (notices, announce, why):
        first = left.but(slow_s=0.3, options={**whole.options, "notices": notices})
        process = start(first)
        harness.wait_for(lambda: len(batches(first)) >= 2, process, first)
        announce()
        process.join(harness.DEADLINE_S)
    log = first.path("log").read_text()
    assert process.exitcode == 143, log[-6000:]
    assert f"{why}: the run is saved at step" in log
    (saved,) = harness.committed_batches(first) - {0}
    assert 2 <= len(batches(first)) == saved < len(batches(whole))  # at a boundary
    second = left.but(name="second", seed=99)
    train(second)
    assert harness.finished(second) == end
    assert batches(first) + batches(second) == batches(whole)
