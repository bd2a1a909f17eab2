from __future__ import annotations

import threading

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from resume_core.storage import digest


def test_the_digest_is_the_one_it_is_named_after():
    assert digest.ALGORITHM == "xxh3_128"
    assert digest.digest(b"abc") == xxhash.xxh3_128(b"abc").hexdigest()
    assert digest.digest(b"") == "99aa06d3014798d86001c324468d497f"  # the published value for no input, seed 0


@given(st.binary(max_size=200), st.integers(1, 70))
def test_chunks_cover_the_file_once_and_in_order(data, chunk_bytes):
    chunks = list(digest.iter_chunks(len(data), chunk_bytes))
    assert b"".join(data[at : at + length] for at, length in chunks) == data
    assert len(chunks) == digest.num_chunks(len(data), chunk_bytes)
    expected = tuple(digest.digest(data[at : at + length]) for at, length in chunks)
    assert digest.digest_chunks(data, chunk_bytes) == expected


def test_the_default_chunk_is_16_mib():
    assert digest.CHUNK_BYTES == 16 * 2**20
    assert [length for _, length in digest.iter_chunks(2**25 + 1)] == [2**24, 2**24, 1]


def test_an_empty_file_has_no_chunks():
    assert digest.digest_chunks(b"") == ()


def test_views_of_any_item_size_are_digested_as_bytes():
    view = memoryview(bytes(range(16))).cast("I")
    assert digest.digest_chunks(view) == digest.digest_chunks(bytes(range(16)))


def test_views_with_gaps_are_refused():
    with pytest.raises(TypeError):
        digest.digest_chunks(memoryview(b"abcdef")[::2])


@pytest.mark.parametrize("text", ["", "0" * 31, "0" * 33, "A" * 32, "g" * 32, "0" * 32 + "\n"])
def test_only_32_lower_case_hexadecimal_digits_are_a_digest(text):
    assert not digest.is_digest(text)


@pytest.mark.parametrize("size_bytes", [0, 1, 10, 11, 35])
def test_digests_taken_beside_the_writing_are_those_of_the_chunks(size_bytes):
    data = bytes(range(size_bytes))
    with digest.Digesting(memoryview(data), 10) as digesting:
        pass
    assert digesting.result() == digest.digest_chunks(data, 10)


def test_digests_are_taken_while_the_file_is_written(monkeypatch):
    taken = threading.Event()
    monkeypatch.setattr(digest, "digest", lambda data: taken.set())
    with digest.Digesting(memoryview(bytes(30)), 10):
        assert taken.wait(30)


def test_a_file_that_cannot_be_written_ends_the_digests(monkeypatch):
    started, go_on, taken = threading.Event(), threading.Event(), []

    def slow(data):
        taken.append(data)
        started.set()
        go_on.wait(30)
        return ""

    monkeypatch.setattr(digest, "digest", slow)
    digesting = digest.Digesting(memoryview(bytes(1000)), 10)
    digesting.__enter__()
    started.wait(30)
    threading.Timer(0.1, go_on.set).start()
    digesting.__exit__(OSError, OSError(), None)
    assert len(taken) == 1
