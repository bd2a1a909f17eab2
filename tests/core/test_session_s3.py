"""A session whose directory is on S3, behind a network that breaks."""

from __future__ import annotations

import itertools
import threading
from dataclasses import replace

import pytest
import torch
from servers.faultproxy import Fault
from servers.seaweedfs import options, quick

from resume_core import Keep, SaveEvery, SaveFailedError, schedule
from resume_core.storage import Lineage, open_store, requests, verify

pytestmark = [pytest.mark.s3, pytest.mark.timeout(60)]

EVERY = SaveEvery(steps=1, minutes=None)


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    monkeypatch.setattr(requests, "PATIENCE", requests.Patience(give_up_s=10, first_pause_s=0.02))


@pytest.fixture
def begin(start, s3_proxy, s3_url):
    """Starts the job on S3, through the proxy."""

    def begin(**arguments):
        return start(s3_url, storage_options=quick(options(s3_proxy.port)), **{"save": EVERY, **arguments})

    return begin


@pytest.fixture
def checkpoints(s3, s3_url):
    """What a reader finds, past the proxy: every checkpoint is whole."""

    def checkpoints():
        lineage = Lineage(open_store(s3_url, quick(s3.storage_options)))
        refs = [ref for attempt in lineage.attempts() for ref in lineage.checkpoints(attempt.name)]
        for ref in refs:
            verify([lineage.store], ref)
        return [ref.name for ref in refs]

    return checkpoints


def some(fault, *, suffix="", operation="PutObject", number=1):
    """A rule: the first requests for a file of that name fail."""
    counter = itertools.count()
    return lambda request: (
        fault if request.operation == operation and request.key.endswith(suffix) and next(counter) < number else None
    )


@pytest.mark.parametrize(
    ("suffix", "fault"),
    [
        ("manifest.json", Fault(lose_reply=True)),
        ("manifest.json", Fault(reset_after_bytes=10)),
        ("attempt.json", Fault(lose_reply=True)),
        ("training.json", Fault(status=500)),
        ("model.safetensors", Fault(status=503)),
    ],
    ids=["manifest-lost", "manifest-reset", "claim-lost", "training-500", "model-503"],
)
def test_a_save_outlasts_a_fault_at_any_of_its_files(begin, s3_proxy, checkpoints, suffix, fault):
    s3_proxy.rule = some(fault, suffix=suffix, number=2)
    begin(keep=Keep(last=1)).train(2).session.end()
    assert checkpoints() == ["step-000000002"]
    s3_proxy.rule = some(fault, operation="GetObject", number=2)
    again = begin()
    assert again.restored.progress.step == 2
    assert again.toy.value.tolist() == [2.0] * 3
    again.session.end()


def settle(run, **patience):
    """Nothing is in flight; from now on the store is less patient."""
    run.session._saves.writer.wait()
    run.session._store._requests.patience = replace(requests.PATIENCE, **patience)


def test_a_save_that_finds_no_server_fails_and_a_later_one_does_not(begin, s3_proxy, checkpoints, monkeypatch):
    monkeypatch.setattr(schedule, "RETRY_S", 0.0)
    run = begin().train(1)
    settle(run, give_up_s=0.1)
    s3_proxy.rule = lambda request: Fault(status=503) if request.operation == "PutObject" else None
    run.train(1)
    settle(run, give_up_s=10)
    assert checkpoints() == ["step-000000001", "step-000000000"]
    s3_proxy.rule = lambda request: None
    run.train(2).session.end()
    assert checkpoints()[0] == "step-000000004"


def test_a_manifest_that_gets_no_answer_ends_in_an_error_and_an_older_checkpoint(begin, s3_proxy, checkpoints):
    run = begin().train(1)
    settle(run, give_up_s=0.1, deadline_s=0.5)
    s3_proxy.rule = some(Fault(hang=True), suffix="manifest.json", number=10)
    run.train(1)
    with pytest.raises(SaveFailedError, match="no answer in time"):
        run.session.end()
    assert checkpoints() == ["step-000000001", "step-000000000"]
    s3_proxy.rule = lambda request: None
    again = begin()
    assert again.restored.progress.step == 1
    again.session.end()


def test_a_server_that_is_killed_and_comes_back_costs_no_save(seaweedfs, begin, s3_proxy, checkpoints):
    run = begin().train(1)
    settle(run, give_up_s=40)
    restart = threading.Thread(target=lambda: (seaweedfs.kill(), seaweedfs.start()))

    def rule(request):
        if request.key.endswith("model.safetensors") and restart.ident is None:
            restart.start()

    s3_proxy.rule = rule
    run.train(2).session.end()
    restart.join()
    assert checkpoints() == ["step-000000003", "step-000000002", "step-000000001"]
    again = begin()
    assert torch.equal(again.toy.value, torch.full((3,), 3.0))
    again.session.end()
