"""What a glance sees, and what it must not go on believing."""

from __future__ import annotations

import os
import threading
import time
from types import SimpleNamespace

import pytest

from resume_core.errors import CorruptCheckpointError
from resume_core.storage import Lineage, local
from resume_core.storage.glance import Glance, Memo

from .faults import Around
from .helpers import Run, steps_of


class Marked(Around):
    """Counts what is asked, and marks every file as an object store does."""

    def __init__(self, inner):
        super().__init__(inner)
        self.asked = []

    def around(self, name, work, *args):
        self.asked.append((name, *args[:1]))
        return work(*args)

    def survey(self, prefix):
        self.asked.append(("survey", prefix))
        return {prefix: {name: self.mark(f"{prefix}/{name}") for name in self.inner.list(prefix)}}

    def mark(self, key):
        return self.inner.read(key).hex() if key.endswith(".json") else ""


@pytest.fixture
def marked(store):
    return Marked(store)


def test_a_folder_is_listed_once_and_a_file_is_read_once(marked):
    marked.inner.put("a/b.json", b"1")
    glance = Glance(marked, Memo())
    for _ in range(3):
        assert glance.list("a") == ["b.json"]
        assert glance.read("a/b.json") == b"1"
        assert glance.exists("a/b.json")
        assert not glance.exists("a/c.json")
        with pytest.raises(FileNotFoundError):
            glance.read("a/c.json")
    assert marked.asked == [("survey", "a"), ("read", "a/b.json")]


def test_the_next_glance_sees_what_is_gone_and_what_is_new(marked):
    marked.inner.put("a/b.json", b"1")
    marked.inner.put("a/c.json", b"1")
    memo = Memo()
    first = Glance(marked, memo)
    assert first.list("a") == ["b.json", "c.json"]
    assert first.read("a/b.json") == first.read("a/c.json") == b"1"
    marked.inner.delete("a/b.json")
    marked.inner.put("a/c.json", b"2")
    second = Glance(marked, memo)
    assert second.list("a") == ["c.json"]
    assert second.read("a/c.json") == b"2"
    with pytest.raises(FileNotFoundError):
        second.read("a/b.json")


def test_what_bears_the_mark_of_what_was_read_is_not_read_again(marked):
    marked.inner.put("a/b.json", b"1")
    memo = Memo()
    for _ in range(3):
        glance = Glance(marked, memo)
        glance.list("a")
        assert glance.read("a/b.json") == b"1"
    assert marked.asked.count(("read", "a/b.json")) == 1


def test_without_marks_everything_is_read_by_each_glance(store):
    store.put("a/b.json", b"1")
    memo = Memo()
    glance = Glance(store, memo)
    glance.list("a")
    assert glance.read("a/b.json") == b"1"
    store.put("a/b.json", b"2")
    glance = Glance(store, memo)
    glance.list("a")
    assert glance.read("a/b.json") == b"2"


def test_writing_through_a_glance_ends_what_it_has_seen(store):
    glance = Glance(store, Memo())
    assert glance.list("a") == []
    assert glance.create("a/b", b"1")
    assert glance.list("a") == ["b"]
    glance.delete("a/b")
    assert glance.list("a") == []


def test_a_memo_forgets_what_was_not_asked_for_longest():
    memo = Memo(max_bytes=10)
    memo.keep("a", "1", b"aaaa", 4)
    memo.keep("b", "1", b"bbbb", 4)
    assert memo.get("a", "1") == b"aaaa"
    memo.keep("c", "1", b"cccc", 4)
    assert memo.get("b", "1") is None
    assert memo.get("a", "1") == b"aaaa"
    memo.keep("d", "", b"d", 1)
    assert memo.get("d", "") is None
    memo.keep("e", "1", b"e" * 11, 11)
    assert memo.get("e", "1") is None
    assert memo.get("a", "1") == b"aaaa"


def test_a_checkpoint_that_was_thinned_or_deleted_is_seen_by_the_next_glance_of_a_run(marked):
    run = Run(marked)
    refs = [run.save(step) for step in (1, 2)]
    lineage = Lineage(marked)
    assert steps_of(lineage.glance().checkpoints(run.attempt.name)) == [2, 1]
    marked.inner.delete(f"{refs[0].path}/manifest.json")
    assert steps_of(lineage.glance().checkpoints(run.attempt.name)) == [2]


def test_what_was_parsed_is_parsed_once_in_each_way(marked):
    marked.inner.put("a/b.json", b"1")
    memo, parsed = Memo(), []

    def parse(data):
        parsed.append(data)
        return int(data)

    for _ in range(2):
        glance = Glance(marked, memo)
        glance.list("a")
        for _ in range(2):
            assert glance.read_as("a/b.json", parse, "number") == 1
            assert glance.read_as("a/b.json", len, "length") == 1
            assert glance.exists("a/b.json")
        assert glance.read_as("a/b.json", parse, "number") == 1
    assert parsed == [b"1"]
    with pytest.raises(FileNotFoundError):
        glance.read_as("a/c.json", parse, "number")


def test_a_file_that_was_changed_in_this_tick_of_the_clock_is_read_again(local_store, monkeypatch):
    local_store.put("a/b.json", b"1")
    path, memo = f"{local_store.url}/a/b.json", Memo()
    real, stamp = os.stat, time.time_ns()

    def coarse(place, *args, **kwargs):
        found = real(place, *args, **kwargs)
        ours = SimpleNamespace(st_ino=7, st_size=found.st_size, st_ctime_ns=stamp, st_mode=found.st_mode)
        return ours if place == path else found

    monkeypatch.setattr(os, "stat", coarse)
    assert Glance(local_store, memo).read("a/b.json") == b"1"
    with open(path, "r+b") as file:
        file.write(b"2")
    assert Glance(local_store, memo).read("a/b.json") == b"2"
    stamp += 10**18  # by the clock of a server that is ahead of ours
    assert local_store.mark("a/b.json") == ""
    stamp = 0
    assert local_store.mark("a/b.json") == "7-1-0"


def test_a_local_file_is_known_again_by_when_it_was_changed(local_store, monkeypatch):
    monkeypatch.setattr(local, "_TICK_NS", 0)
    local_store.put("a/b.json", b"1")
    memo, parsed = Memo(), []
    for content in (b"1", b"1", b"2", b"2"):
        if content == b"2" and len(parsed) == 1:
            local_store.put("a/b.json", b"2")
        assert Glance(local_store, memo).read_as("a/b.json", lambda data: parsed.append(data) or data, "x") == content
    assert parsed == [b"1", b"2"]
    with pytest.raises(FileNotFoundError):
        local_store.mark("a/c.json")


def test_many_files_are_asked_for_at_once(marked):
    keys = [f"a/{number}.json" for number in range(9)]
    for key in keys:
        marked.inner.put(key, key.encode())
    marked.num_parallel_requests = 3
    meeting = threading.Barrier(3, timeout=30)  # breaks when one request waits for the other
    glance = Glance(marked, Memo())
    assert glance.list("a")

    def parse(key):
        return {"text": lambda data: meeting.wait() >= 0 and data.decode(), "length": len}

    assert glance.read_ahead([*keys, "a/missing.json"], parse) == 2 * 9
    assert sorted(marked.asked) == sorted([("survey", "a"), *(("read", key) for key in keys)])
    marked.asked.clear()
    assert [glance.read_as(key, parse(key)["text"], "text") for key in keys] == keys
    assert [glance.read_as(key, len, "length") for key in keys] == [8] * 9
    assert marked.asked == []


def test_what_cannot_be_read_ahead_is_met_by_who_asks_for_it(marked):
    marked.inner.put("a/b.json", b"1")
    marked.num_parallel_requests = 2
    glance = Glance(marked, Memo())

    def refuse(data):
        raise CorruptCheckpointError("torn")

    assert glance.read_ahead(["a/b.json", "a/c.json"], lambda key: {"x": refuse}) == 0
    with pytest.raises(CorruptCheckpointError, match="torn"):
        glance.read_as("a/b.json", refuse, "x")
    with pytest.raises(FileNotFoundError):
        glance.read_as("a/c.json", refuse, "x")
