"""A real S3 server behind a network that breaks: no request hangs, nothing torn is seen, nothing is left."""

from __future__ import annotations

import itertools
import os
import random
import threading
import time
from dataclasses import replace

import pytest
from servers.faultproxy import Fault
from servers.seaweedfs import options, quick

from resume_core.storage import open_store
from resume_core.storage import s3 as s3_module

from .helpers import Run, save, tree

pytestmark = [pytest.mark.s3, pytest.mark.timeout(60)]

MIB = 1024 * 1024
DATA = os.urandom(6 * MIB)  # two parts, one of the least size

PASSING = {
    "a server error": (Fault(status=500), 2),
    "a storm of 503": (Fault(status=503), 4),
    "a reset before the body": (Fault(reset_after_bytes=0), 2),
    "a reset within the body": (Fault(reset_after_bytes=3), 1),
    "a lost reply": (Fault(lose_reply=True), 1),
    "a cut reply": (Fault(truncate_after_bytes=2), 1),
    "no answer": (Fault(hang=True), 1),
}
LASTING = {name: fault for name, (fault, _) in PASSING.items() if name not in ("a lost reply", "a cut reply")}


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    monkeypatch.setattr(s3_module, "PART_BYTES", 5 * MIB)


def hurry(store, **patience):
    """Shorter patience for one store; a short deadline only where nothing answers, for the server can be slow."""
    store._requests.patience = replace(store._requests.patience, **patience)


def hurry_for(store, fault):
    hurry(store, **({"deadline_s": 0.5, "min_bytes_per_s": 50 * MIB} if fault.hang else {}))


@pytest.fixture
def store(s3_proxy, s3_url):
    return open_store(s3_url, quick(options(s3_proxy.port)))


@pytest.fixture
def direct(s3, s3_url):
    """The same place, past the proxy."""
    return open_store(s3_url, quick(s3.storage_options))


def first(number, fault, operation=None):
    """A rule: the first requests (of an operation) fail."""
    counter = itertools.count()
    return lambda request: fault if operation in (None, request.operation) and next(counter) < number else None


def always(fault, operation):
    return lambda request: fault if request.operation == operation else None


def write(store, key="a/large", data=DATA):
    with store.open_sink(key, len(data)) as sink:
        for start in range(0, len(data), MIB):
            sink.write_at(start, memoryview(data)[start : start + MIB])


def read_into(store, key="a/large"):
    buffer = bytearray(MIB)
    store.read_into(key, 2 * MIB, buffer)
    return buffer


def unfinished(store):
    return [key for key, _ in store.uploads(store.object_name("a").removesuffix("a"))]


@pytest.mark.parametrize("name", PASSING)
def test_every_operation_outlasts(store, direct, s3_proxy, name):
    fault, number = PASSING[name]
    drawn = random.getstate()
    hurry(store, give_up_s=10)
    hurry_for(store, fault)
    rules = [first(number, fault, name) for name in ("CreateMultipartUpload", "UploadPart", "CompleteMultipartUpload")]
    s3_proxy.rule = lambda request: next(filter(None, (rule(request) for rule in rules)), None)
    write(store)
    assert direct.read("a/large") == DATA
    assert unfinished(direct) == []
    calls = {
        "PutObject": lambda: store.put("a/put", b"content"),
        "GetObject": lambda: read_into(store) == DATA[2 * MIB : 3 * MIB] and store.read("a/put") == b"content",
        "HeadObject": lambda: store.size("a/large") == len(DATA),
        "ListObjects": lambda: "put" in store.list("a"),
        "DeleteObject": lambda: store.delete("a/put"),
    }
    for operation, call in calls.items():
        s3_proxy.rule = first(number, fault, operation)
        assert call() in (None, True)
    assert not direct.exists("a/put")
    s3_proxy.rule = first(number, fault, "PutObject")
    assert store.create("a/claim", b"ours") is True
    assert direct.read("a/claim") == b"ours"
    assert random.getstate() == drawn  # which belongs to the training script


@pytest.mark.parametrize("name", LASTING)
def test_an_upload_fails_clearly_and_leaves_nothing_when_it_never_ends(store, direct, s3_proxy, name):
    hurry(store, give_up_s=0.1)
    hurry_for(store, LASTING[name])
    for operation in ("CreateMultipartUpload", "UploadPart", "CompleteMultipartUpload"):
        s3_proxy.rule = always(LASTING[name], operation)
        with pytest.raises(OSError, match="a/large"):
            write(store)
        late = unfinished(direct)
        if late and operation == "CreateMultipartUpload":  # begun by the server after the store had looked for it
            direct.abandon_uploads(["a"])
        assert tree(direct) == unfinished(direct) == []


@pytest.mark.parametrize("name", LASTING)
def test_every_operation_fails_clearly_when_it_never_ends(store, direct, s3_proxy, name):
    hurry(store, give_up_s=0.1)
    hurry_for(store, LASTING[name])
    direct.put("a/b", b"0123456789" * 10)
    s3_proxy.rule = lambda request: LASTING[name]
    calls = [
        lambda: store.put("a/c", b"0123456789"),
        lambda: store.create("a/c", b"0123456789"),
        lambda: store.read("a/b"),
        lambda: store.size("a/b"),
        lambda: store.exists("a/b"),
        lambda: store.list("a"),
        lambda: store.delete("a/b"),
        lambda: store.read_into("a/b", 0, bytearray(5)),
    ]
    for call in calls:
        with pytest.raises(OSError, match="s3://"):
            call()
    assert not direct.exists("a/c")


def test_a_completion_whose_reply_is_always_lost_counts_when_the_object_is_there(store, direct, s3_proxy):
    hurry(store, give_up_s=0.1)
    s3_proxy.rule = always(Fault(lose_reply=True), "CompleteMultipartUpload")
    write(store)
    assert direct.read("a/large") == DATA
    assert unfinished(direct) == []


def test_an_object_of_another_upload_is_not_taken_for_ours(store, direct, s3_proxy):
    hurry(store, give_up_s=0.1)
    write(direct, data=bytes(len(DATA)))
    s3_proxy.rule = always(Fault(status=500), "CompleteMultipartUpload")
    with pytest.raises(OSError, match="injected"):
        write(store)
    assert direct.read("a/large") == bytes(len(DATA))


def test_a_put_whose_reply_is_always_lost_counts_when_it_is_there(store, direct, s3_proxy):
    hurry(store, give_up_s=0.1)
    s3_proxy.rule = always(Fault(lose_reply=True), "PutObject")
    store.put("a/manifest.json", b"content")
    assert store.create("a/claim", b"ours") is True
    assert direct.read("a/manifest.json") == b"content"


def test_a_claim_that_somebody_else_has_made_meanwhile_is_theirs(store, direct, s3_proxy):
    def rule(request):
        if request.operation == "PutObject":
            s3_proxy.rule = lambda request: None
            threading.Thread(target=direct.put, args=("a/claim", b"theirs")).start()
            time.sleep(1)
        return

    s3_proxy.rule = rule
    assert store.create("a/claim", b"ours") is False
    assert direct.read("a/claim") == b"theirs"


def test_a_link_that_is_slow_and_makes_progress_is_not_given_up(store, direct, s3_proxy):
    hurry(store, deadline_s=2, min_bytes_per_s=MIB, give_up_s=20)
    s3_proxy.rule = lambda request: Fault(bytes_per_s=1.5 * MIB) if request.operation == "UploadPart" else None
    start = time.monotonic()
    write(store)
    assert time.monotonic() - start > 2  # longer than a request without data may take
    assert direct.read("a/large") == DATA
    assert s3_proxy.count()["UploadPart"] == 2


def test_a_link_slower_than_foreseen_is_found_out_by_longer_tries(store, direct, s3_proxy):
    hurry(store, deadline_s=1, min_bytes_per_s=1000 * MIB, give_up_s=20)
    s3_proxy.rule = lambda request: Fault(bytes_per_s=3 * MIB) if request.operation == "UploadPart" else None
    write(store)
    assert direct.read("a/large") == DATA
    assert s3_proxy.count()["UploadPart"] > 2


def test_parts_go_up_several_at_once_and_not_more(store, direct, s3_proxy, monkeypatch):
    monkeypatch.setattr(s3_module, "PARTS_AT_ONCE", 2)
    data = os.urandom(22 * MIB)
    s3_proxy.rule = lambda request: Fault(bytes_per_s=20 * MIB) if request.operation == "UploadPart" else None
    write(store, data=data)
    assert direct.read("a/large") == data
    assert s3_proxy.most_at_once["UploadPart"] == 2


def test_an_upload_that_nobody_could_abort_is_abandoned_later(store, direct, s3_proxy, caplog):
    hurry(store, give_up_s=0.1)
    broken = ("CompleteMultipartUpload", "AbortMultipartUpload")
    s3_proxy.rule = lambda request: Fault(status=503) if request.operation in broken else None
    with pytest.raises(OSError, match="injected"):
        write(store)
    assert "an unfinished upload is left" in caplog.text
    assert unfinished(direct) == ["a/large"]
    s3_proxy.rule = lambda request: None
    assert store.abandon_uploads(["a"]) == 1
    assert tree(direct) == unfinished(direct) == []


def test_no_request_is_made_twice_when_all_is_well(store, s3_proxy):
    write(store)
    read_into(store)
    store.put("a/b", b"x")
    assert store.read("a/b") == b"x"
    assert store.list("a") == ["b", "large"]
    store.delete("a/b")
    assert s3_proxy.count() == {
        "CreateMultipartUpload": 1,
        "UploadPart": 2,
        "CompleteMultipartUpload": 1,
        "GetObject": 2,
        "PutObject": 1,
        "ListObjects": 1,
        "DeleteObject": 1,
    }


def test_a_commit_makes_one_request_a_file_and_three_more(store, s3_proxy):
    run = Run(store)
    slot = run.slots.take(1)
    s3_proxy.requests.clear()
    save(store, slot, "s1", run.attempt, world_size=1)
    assert s3_proxy.count() == {"PutObject": 5 + 1, "ListObjects": 2}  # listed: the folder, and the attempts


def test_a_server_that_is_killed_within_an_upload_and_comes_back_gets_it_all(seaweedfs, store, direct, s3_proxy):
    hurry(store, give_up_s=40)
    restarted = threading.Thread(target=lambda: (seaweedfs.kill(), seaweedfs.start()))

    def rule(request):
        if request.operation == "UploadPart" and not restarted.ident:
            restarted.start()
        return Fault(bytes_per_s=20 * MIB)

    s3_proxy.rule = rule
    write(store)
    restarted.join()
    assert direct.read("a/large") == DATA
    assert unfinished(direct) == []
