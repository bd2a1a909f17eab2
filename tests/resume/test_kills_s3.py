"""A run whose directory is on S3, killed and started again, does what the uninterrupted run did, to the last bit."""

from __future__ import annotations

import pytest
from harness import Job, assert_same_run, batches, kill_at, train
from servers.faultproxy import Fault
from servers.seaweedfs import options

from resume_core.storage import open_store

pytestmark = [pytest.mark.s3, pytest.mark.timeout(120)]


def test_a_killed_run_goes_on_from_s3_and_a_bad_network_changes_nothing(tmp_path, s3_proxy, s3_url):
    job = Job(str(tmp_path), "reference", str(tmp_path / "ckpt"), epochs=2, workers=2, save_steps=3)
    reference = job, train(job)
    storage_options = options(s3_proxy.port)
    first = job.but(name="first", directory=s3_url, options={"storage_options": storage_options})
    kill_at(first, 7, saved=6)
    s3_proxy.rule = lambda request: Fault(status=503) if len(s3_proxy.requests) % 19 == 0 else None
    second = first.but(name="second", seed=8)
    assert_same_run(reference, train(second), first, second)
    assert len(batches(second)) == 4
    secret = storage_options["secret"]
    assert secret not in first.path("log").read_text() + second.path("log").read_text()
    store = open_store(s3_url, storage_options)
    attempts = store.list("")
    assert len(attempts) == 2
    assert all(secret.encode() not in store.read(f"{attempt}/attempt.json") for attempt in attempts)
