"""How many requests a run makes of an object store: each costs a round trip, and money."""

from __future__ import annotations

import pytest
from servers.seaweedfs import options, quick

from resume_core import Check, Keep, SaveEvery

pytestmark = [pytest.mark.s3, pytest.mark.timeout(60)]

NUM_FILES = 5  # of a checkpoint of one rank, beside its manifest
NUM_KEPT = 3


@pytest.fixture
def begin(start, s3_proxy, s3_url):
    def begin(check=None):
        arguments = {"storage_options": quick(options(s3_proxy.port)), "save": SaveEvery(steps=1, minutes=None)}
        return start(s3_url, keep=Keep(last=NUM_KEPT), check=check or Check(steps=0), **arguments)

    return begin


@pytest.fixture
def made(s3_proxy):
    """The requests since it was asked last."""

    def made():
        found = [f"{request.operation} {request.key.split('/run/')[-1]}" for request in s3_proxy.requests]
        s3_proxy.requests.clear()
        for report in [request for request in found if request.endswith("history.json")]:  # by the clock
            found.remove(report)
            found.remove(f"HeadObject {report.split(' ')[1].replace('history', 'attempt')}")
        return found

    return made


def save(run):
    run.train(1)
    run.session.wait()


def test_a_save_that_deletes_the_oldest_reads_nothing_again(begin, made):
    run = begin()
    for _ in range(NUM_KEPT + 1):
        save(run)
    made()
    save(run)
    requests = made()
    # written, deleted with a look into the folder, one look each at: what was written, twice who is the newest, the
    # claim, what is there; and the manifest, to know it again
    assert len(requests) <= 2 * (NUM_FILES + 1) + 1 + 6, requests
    assert sum(request.startswith("GetObject") for request in requests) == 1
    run.session.end()


def test_saves_of_a_later_attempt_look_once_at_each_that_was_before(begin, made):
    for _ in range(2):
        run = begin()
        save(run)
        run.session.end()
    run = begin()
    for _ in range(NUM_KEPT + 2):
        save(run)
    made()
    save(run)
    requests = made()
    assert len(requests) <= 2 * (NUM_FILES + 1) + 1 + 6 + 2, requests
    run.session.end()


def test_a_start_reads_each_manifest_once_and_what_it_goes_on_from_once_more(begin, made):
    run = begin()
    for _ in range(NUM_KEPT + 2):
        save(run)
    run.session.end()
    made()
    again = begin()
    again.session.wait()
    requests = made()
    assert len(requests) <= 2 * NUM_FILES + NUM_KEPT + 20, requests
    manifests = [request for request in requests if request.startswith("GetObject") and "manifest" in request]
    assert len(manifests) == NUM_KEPT + 1
    again.session.end()


def test_what_is_recorded_behind_a_save_costs_one_look_and_one_write(begin, made):
    run = begin(Check(steps=1))
    made()
    for _ in range(3):
        save(run)
    run.session.end()
    found = [request for request in made() if "evidence" in request]
    assert 1 <= len(found) <= 3
    assert all(request.startswith("PutObject") for request in found)
