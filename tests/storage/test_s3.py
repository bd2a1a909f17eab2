"""The store on a real S3 server: the contract, uploads in parts, what is left of them."""

from __future__ import annotations

import os
import uuid

import pytest
from servers.seaweedfs import quick

from resume_core.storage import open_store
from resume_core.storage import s3 as s3_module
from resume_core.storage.remote import FsspecStore

from .contract import StoreContract
from .helpers import in_child, tree

pytestmark = [pytest.mark.s3, pytest.mark.timeout(120)]

MIB = 1024 * 1024


@pytest.fixture
def store(s3, s3_url):
    return open_store(s3_url, quick(s3.storage_options))


@pytest.fixture
def small_parts(monkeypatch):
    """Parts of the least size that S3 takes."""
    monkeypatch.setattr(s3_module, "PART_BYTES", 5 * MIB)


def write(store, key, data, piece_bytes=MIB):
    with store.open_sink(key, len(data)) as sink:
        for start in range(0, len(data), piece_bytes):
            sink.write_at(start, memoryview(data)[start : start + piece_bytes])


def unfinished(store):
    return sorted(key for key, _ in store.uploads(store.object_name("a").removesuffix("a")))


class TestS3(StoreContract):
    @pytest.fixture
    def reopen(self, s3, s3_url):
        return lambda: open_store(s3_url, quick(s3.storage_options))

    def test_delete_empty_leaves_a_folder_with_a_file(self, store):
        store.put("a/b/c", b"x")
        store.delete_empty("a/b")
        assert store.read("a/b/c") == b"x"  # what follows is not S3's: SeaweedFS goes on listing an empty folder


@pytest.mark.parametrize("size_bytes", [5 * MIB, 5 * MIB + 1, 12 * MIB, 15 * MIB])
def test_a_large_file_is_uploaded_in_parts(store, small_parts, size_bytes):
    data = os.urandom(size_bytes)
    write(store, "a/b", data, piece_bytes=3 * MIB)
    assert store.size("a/b") == size_bytes
    assert store.read("a/b") == data
    assert unfinished(store) == []


def interrupt(store, key, size_bytes, error):
    data = memoryview(os.urandom(size_bytes))
    with store.open_sink(key, size_bytes) as sink:
        sink.write_at(0, data[: size_bytes - 1])
        raise error


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_an_exception_within_an_upload_leaves_neither_object_nor_upload(store, small_parts, error):
    with pytest.raises(error):
        interrupt(store, "a/b", 22 * MIB, error)
    assert tree(store) == unfinished(store) == []


def test_unfinished_uploads_below_a_prefix_are_abandoned_and_no_others(store, small_parts):
    for key in ("attempt-0001-aaaa/x", "attempt-0001-aaaa/y/z", "attempt-0001-aaaab/x", "attempt-0002-bbbb/x"):
        store._call("create_multipart_upload", key)
    store.put("attempt-0001-aaaa/whole", b"x")
    assert store.abandon_uploads(["attempt-0001-aaaa", "attempt-0003-cccc"]) == 2
    assert unfinished(store) == ["attempt-0001-aaaab/x", "attempt-0002-bbbb/x"]
    assert tree(store) == ["attempt-0001-aaaa/whole"]
    assert store.abandon_uploads([]) == 0


def test_the_store_for_any_file_system_works_on_an_asynchronous_one_too(s3, s3_url):
    store = FsspecStore(s3_url, s3.storage_options)
    data = os.urandom(6 * MIB)
    write(store, "a/large", data)
    store.put("a/small", b"small")
    assert store.create("a/claim", b"ours") is True
    assert store.create("a/claim", b"theirs") is False
    buffer = bytearray(MIB)
    store.read_into("a/large", MIB, buffer)
    assert buffer == data[MIB : 2 * MIB]
    assert store.read("a/small") == b"small"
    assert store.list("a") == ["claim", "large", "small"]
    with pytest.raises(RuntimeError):
        interrupt(store, "a/other", MIB, RuntimeError)
    store.delete("a/claim")
    assert tree(store) == ["a/large", "a/small"]


def test_a_missing_bucket_is_said_when_a_run_looks_for_its_checkpoints(s3):
    store = open_store(f"s3://{uuid.uuid4().hex}/run", s3.storage_options)
    with pytest.raises(FileNotFoundError, match="bucket does not exist"):
        store.list("")


def test_a_process_that_was_forked_off_is_told_to_open_the_store_again(store):
    store.put("a", b"x")

    def work():
        with pytest.raises(RuntimeError, match="open the store again"):
            store.read("a")

    assert in_child(work) == 0
