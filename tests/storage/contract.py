"""What every store promises; the tests of each kind of store inherit it."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from resume_core.storage import open_store

from .helpers import tree


def interrupt_a_sink(store, key, error):
    with store.open_sink(key, 10) as sink:
        sink.write_at(0, b"01234")
        raise error


class StoreContract:
    """Every store inherits these."""

    @pytest.fixture
    def url(self, tmp_path):
        raise NotImplementedError

    @pytest.fixture
    def reopen(self, url):
        return lambda: open_store(url)

    @pytest.fixture
    def store(self, reopen):
        return reopen()

    @pytest.mark.parametrize("sizes", [[], [0], [3, 0, 4], [10], [1] * 10, [4, 6, 0]])
    def test_bytes_are_read_into_several_views_in_turn(self, store, sizes):
        store.put("a", b"--0123456789")
        views = [memoryview(bytearray(size)) for size in sizes]
        store.read_scattered("a", 2, views)
        assert b"".join(views) == b"0123456789"[: sum(sizes)]

    def test_thousands_of_views_are_filled_by_one_read(self, store):
        data = bytes(range(251)) * 20
        store.put("a", data)
        views = [memoryview(bytearray(1)) for _ in range(5000)]
        store.read_scattered("a", 20, views)
        assert b"".join(views) == data[20:]

    def test_views_beyond_the_end_of_a_file_or_of_none_cannot_be_filled(self, store):
        store.put("a", b"0123")
        with pytest.raises(EOFError):
            store.read_scattered("a", 0, [memoryview(bytearray(3)), memoryview(bytearray(2))])
        with pytest.raises(FileNotFoundError):
            store.read_scattered("b", 0, [memoryview(bytearray(3)), memoryview(bytearray(2))])

    def test_an_open_file_is_read_from_any_place_and_one_that_is_missing_is_found_out_by_reading(self, store):
        store.put("a", b"0123456789")
        views = [memoryview(bytearray(2)), memoryview(bytearray(1))]
        with store.open_file("a") as file:
            for at, expected in ((6, b"678"), (0, b"012"), (7, b"789")):
                file.read_scattered(at, views)
                assert b"".join(views) == expected
            with pytest.raises(EOFError):
                file.read_scattered(8, views)
        with store.open_file("b") as file, pytest.raises(FileNotFoundError):
            file.read_scattered(0, views)

    def test_an_empty_store_lists_nothing_and_reading_creates_nothing(self, store):
        assert store.list("") == store.list("a/b") == []
        assert not store.exists("a")
        store.delete("a")
        store.delete_tree("a")
        store.delete_empty("a")
        assert tree(store) == []

    @pytest.mark.parametrize("data", [b"", b"x", bytes(range(256)) * 9])
    def test_what_was_put_is_read(self, store, data):
        store.put("a/b/c.json", data)
        assert store.read("a/b/c.json") == data
        assert store.size("a/b/c.json") == len(data)
        assert store.exists("a/b/c.json")

    def test_put_replaces_a_longer_file_whole(self, store):
        store.put("a", b"long content")
        store.put("a", b"new")
        assert store.read("a") == b"new"
        assert store.size("a") == 3

    def test_create_makes_a_file_once_and_leaves_the_first(self, store):
        assert store.create("x/a", b"first") is True
        assert store.create("x/a", b"second") is False
        assert store.create("x/a", b"first") is False
        assert store.read("x/a") == b"first"
        assert tree(store) == ["x/a"]

    def test_create_works_again_after_a_delete(self, store):
        store.create("a", b"1")
        store.delete("a")
        assert store.create("a", b"2")
        assert store.read("a") == b"2"

    def test_of_many_threads_that_create_at_once_one_wins(self, store):
        contents = [b"%d" % number for number in range(8)]
        for round_number in range(5):
            key = f"claims/{round_number}"
            with ThreadPoolExecutor(8) as pool:
                won = list(pool.map(lambda data, key=key: store.create(key, data), contents))
            assert sum(won) == 1
            assert store.read(key) == contents[won.index(True)]

    def test_a_missing_file_is_a_file_not_found_error(self, store):
        store.put("a/b", b"x")
        for key in ("missing", "a/missing", "a/b/below-a-file", "a"):
            with pytest.raises(FileNotFoundError):
                store.read(key)
            with pytest.raises(FileNotFoundError):
                store.size(key)
            with pytest.raises(FileNotFoundError):
                store.read_into(key, 0, bytearray(1))
            assert not store.exists(key)

    def test_ranges_fill_the_given_memory(self, store):
        store.put("a", b"0123456789")
        buffer = bytearray(4)
        store.read_into("a", 3, memoryview(buffer))
        assert buffer == b"3456"
        store.read_into("a", 10, bytearray(0))

    def test_a_range_beyond_the_end_is_an_eof_error(self, store):
        store.put("a", b"0123456789")
        for offset_bytes, length in ((8, 3), (10, 1), (100, 1)):
            with pytest.raises(EOFError):
                store.read_into("a", offset_bytes, bytearray(length))

    def test_list_gives_direct_children_sorted_and_fresh(self, store, reopen):
        for key in ("b/2", "b/10", "a", "b/c/d", "bb/x"):
            store.put(key, b"x")
        assert store.list("") == ["a", "b", "bb"]
        assert store.list("b") == ["10", "2", "c"]
        assert store.list("a") == []
        reopen().put("b/11", b"x")
        assert store.list("b") == ["10", "11", "2", "c"]
        reopen().delete("b/2")
        assert store.list("b") == ["10", "11", "c"]

    def test_a_survey_gives_what_lists_give(self, store):
        for key in ("a/b/x", "a/b/c/y", "a/z", "ab/x"):
            store.put(key, b"x")
        found = store.survey("a")
        assert sorted(found["a"]) == ["b", "z"]
        for folder, marks in found.items():
            assert sorted(marks) == store.list(folder)
        before = found["a"]["z"]
        store.put("a/z", b"other")
        assert store.survey("a")["a"]["z"] != before or not before
        assert store.survey("none") == {"none": {}}

    def test_delete_removes_one_file(self, store):
        store.put("a/b", b"x")
        store.put("a/c", b"x")
        store.delete("a/b")
        store.delete("a/b")
        store.delete("a/b/c")
        assert tree(store) == ["a/c"]

    def test_delete_tree_removes_what_is_below_and_nothing_beside(self, store):
        for key in ("a/b/c", "a/b/d/e", "a/bb", "a/b*", "ab"):
            store.put(key, b"x")
        store.delete_tree("a/b")
        assert tree(store) == ["a/b*", "a/bb", "ab"]
        store.delete_tree("a/b*")
        store.delete_tree("")
        assert "a/bb" not in tree(store)

    def test_delete_empty_leaves_a_folder_with_a_file(self, store):
        store.put("a/b/c", b"x")
        store.delete_empty("a/b")
        assert store.read("a/b/c") == b"x"
        store.delete("a/b/c")
        store.delete_empty("a/b")
        assert store.list("a") == []

    def test_a_sink_takes_ranges_in_any_order(self, store):
        with store.open_sink("a/b", 10) as sink:
            sink.write_at(6, b"6789")
            sink.write_at(0, memoryview(b"012345"))
        assert store.read("a/b") == b"0123456789"
        assert tree(store) == ["a/b"]

    def test_a_sink_takes_the_memory_of_the_caller_in_pieces_of_any_size(self, store):
        data = memoryview(bytearray(os.urandom(1000)))
        with store.open_sink("a", 1000) as sink:
            for start in (0, 700, 1, 13, 999, 400):
                end = {0: 1, 700: 999, 1: 13, 13: 400, 999: 1000, 400: 700}[start]
                sink.write_at(start, data[start:end])
            sink.write_at(500, b"")
        assert store.read("a") == data

    def test_there_is_no_unfinished_upload_to_abandon(self, store):
        store.put("a/b", b"x")
        assert store.abandon_uploads(["a"]) == store.abandon_uploads([]) == 0
        assert tree(store) == ["a/b"]

    def test_many_threads_read_and_write_at_once(self, store):
        def work(number):
            data = bytes([number]) * 1000
            with store.open_sink(f"t/{number}", 1000) as sink:
                sink.write_at(0, data)
            buffer = bytearray(500)
            store.read_into(f"t/{number}", 250, buffer)
            return buffer == data[:500]

        with ThreadPoolExecutor(8) as pool:
            assert all(pool.map(work, range(24)))
        assert len(store.list("t")) == 24

    def test_an_empty_sink_makes_an_empty_file(self, store):
        with store.open_sink("a", 0):
            pass
        assert store.read("a") == b""

    @pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit])
    def test_an_exception_in_a_sink_leaves_nothing(self, store, error):
        with pytest.raises(error):
            interrupt_a_sink(store, "a/b", error)
        assert tree(store) == []

    def test_an_exception_in_a_sink_leaves_the_file_that_was_there(self, store):
        store.put("a", b"old")
        with pytest.raises(RuntimeError):
            interrupt_a_sink(store, "a", RuntimeError)
        assert store.read("a") == b"old"

    def test_a_sink_that_was_not_filled_is_refused_and_leaves_nothing(self, store):
        with pytest.raises(ValueError, match="5 of 10 bytes"), store.open_sink("a", 10) as sink:
            sink.write_at(0, b"01234")
        assert tree(store) == []

    @pytest.mark.parametrize("offset_bytes", [-1, 8, 100])
    def test_a_sink_refuses_ranges_outside_its_size(self, store, offset_bytes):
        with pytest.raises(ValueError, match="lie outside"), store.open_sink("a", 10) as sink:
            sink.write_at(offset_bytes, b"abc")
        assert tree(store) == []

    @pytest.mark.parametrize("key", ["../a", "/a", "a//b", "", "a/../../b"])
    def test_keys_outside_the_store_are_refused_by_every_method(self, store, key):
        calls = [store.read, store.size, store.exists, store.delete, store.delete_empty]
        calls += [lambda key: store.put(key, b""), lambda key: store.create(key, b"")]
        calls += [lambda key: store.open_sink(key, 1), lambda key: store.read_into(key, 0, bytearray(1))]
        calls += [store.list, store.delete_tree] if key else []
        for call in calls:
            with pytest.raises(ValueError, match="not a key"):
                call(key)

    def test_names_that_look_like_patterns_are_taken_literally(self, store):
        store.put("run[1]/a*", b"star")
        store.put("run[1]/ab", b"other")
        store.delete("run[1]/a*")
        assert tree(store) == ["run[1]/ab"]

    def test_locate_names_the_place_for_messages(self, store):
        assert store.locate("a/b") == f"{store.url}/a/b"
        assert store.locate("") == store.url
