"""One contract for every store; what a kind adds is tested below it."""

from __future__ import annotations

import errno
import os
import re
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resume_core.storage import direct as direct_module
from resume_core.storage import local as local_module
from resume_core.storage import open_store
from resume_core.storage.local import LocalStore, make_folder
from resume_core.storage.store import FsspecStore

from .faults import Faults
from .helpers import FaultyOs, in_child, tree


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
    def store(self, url):
        return open_store(url)

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

    def test_list_gives_direct_children_sorted_and_fresh(self, store, url):
        for key in ("b/2", "b/10", "a", "b/c/d", "bb/x"):
            store.put(key, b"x")
        assert store.list("") == ["a", "b", "bb"]
        assert store.list("b") == ["10", "2", "c"]
        assert store.list("a") == []
        open_store(url).put("b/11", b"x")
        assert store.list("b") == ["10", "11", "2", "c"]
        open_store(url).delete("b/2")
        assert store.list("b") == ["10", "11", "c"]

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

    def test_a_sink_does_not_keep_the_memory_it_was_given(self, store):
        buffer = bytearray(b"abc")
        with store.open_sink("a", 6) as sink:
            sink.write_at(0, buffer)
            buffer[:] = b"xyz"
            sink.write_at(3, buffer)
        assert store.read("a") == b"abcxyz"

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


class TestLocal(StoreContract):
    @pytest.fixture
    def url(self, tmp_path):
        return tmp_path / "new" / "run"


class TestMemory(StoreContract):
    @pytest.fixture
    def url(self):
        return f"memory://{uuid.uuid4().hex}/run"


class TestFsspecWithFolders(StoreContract):
    """The generic store on a file system that wants its folders made first and has no atomic calls."""

    @pytest.fixture
    def url(self, tmp_path):
        return f"simplecache::file://{tmp_path}/run"

    @pytest.fixture
    def store(self, tmp_path):
        store = FsspecStore(f"file://{tmp_path}/run")
        store.delete_empty = lambda prefix: LocalStore(f"{tmp_path}/run").delete_empty(prefix)
        return store

    def test_list_gives_direct_children_sorted_and_fresh(self, store, tmp_path):
        super().test_list_gives_direct_children_sorted_and_fresh(store, tmp_path / "run")

    def test_an_empty_store_lists_nothing_and_reading_creates_nothing(self, store):
        assert store.list("") == []


@settings(deadline=None, max_examples=60)
@given(st.binary(min_size=1, max_size=400), st.data())
def test_ranges_read_what_a_slice_would(data, draw):
    store = open_store(f"memory://{uuid.uuid4().hex}")
    store.put("a", data)
    start = draw.draw(st.integers(0, len(data)))
    buffer = bytearray(draw.draw(st.integers(0, len(data) - start)))
    store.read_into("a", start, buffer)
    assert buffer == data[start : start + len(buffer)]


# ---- opening


def test_home_relative_and_file_urls_mean_local_directories(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert open_store("runs/a").url == str(tmp_path / "runs/a")
    assert open_store("~/runs").url == str(tmp_path / "home/runs")
    assert open_store(f"file://{tmp_path}/x").url == str(tmp_path / "x")
    assert open_store(Path("x")).url == str(tmp_path / "x")


def test_a_relative_store_stays_where_it_was_opened(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    store = open_store("run")
    monkeypatch.chdir("/")
    store.put("a", b"x")
    assert (tmp_path / "run/a").read_bytes() == b"x"


def test_opening_creates_nothing(tmp_path):
    open_store(tmp_path / "run").list("")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("url", ["", "nosuchprotocol://x/y"])
def test_a_url_that_means_nothing_is_a_value_error(url):
    with pytest.raises(ValueError):
        open_store(url)


def test_storage_options_reach_the_file_system():
    store = open_store("memory://x", {"global_store": False, "skip_instance_cache": True})
    store.put("a", b"x")
    assert not open_store("memory://x").exists("a")


# ---- fsspec


def test_a_put_whose_reply_was_lost_counts_when_reading_back_shows_it(monkeypatch):
    store = open_store(f"memory://{uuid.uuid4().hex}")
    real = store._fs.pipe_file

    def lost(path, value, **kwargs):
        real(path, value, **kwargs)
        raise TimeoutError("no reply")

    monkeypatch.setattr(store._fs, "pipe_file", lost)
    store.put("a", b"x")
    assert store.read("a") == b"x"


def test_a_put_that_failed_raises_what_the_file_system_raised(monkeypatch):
    store = open_store(f"memory://{uuid.uuid4().hex}")

    def fail(*args, **kwargs):
        raise PermissionError(errno.EACCES, "no")

    monkeypatch.setattr(store._fs, "pipe_file", fail)
    with pytest.raises(PermissionError):
        store.put("a", b"x")
    with pytest.raises(PermissionError):
        store.create("a", b"x")


def test_a_file_system_without_an_exclusive_mode_learns_of_a_race_by_reading_back(monkeypatch):
    store = open_store(f"memory://{uuid.uuid4().hex}")
    store._create_mode = {}
    real = store._fs.pipe_file

    def raced(path, value):
        real(path, value)
        real(path, b"theirs")

    monkeypatch.setattr(store._fs, "pipe_file", raced)
    assert store.create("a", b"ours") is False
    assert store.read("a") == b"theirs"


def test_a_network_fault_is_not_taken_for_a_missing_file(monkeypatch):
    store = open_store(f"memory://{uuid.uuid4().hex}")

    def fail(*args, **kwargs):
        raise ConnectionError("down")

    monkeypatch.setattr(store._fs, "info", fail)
    monkeypatch.setattr(store._fs, "ls", fail)
    for call in (
        lambda: store.exists("a"),
        lambda: store.list(""),
        lambda: store.create("a", b""),
        lambda: store.delete("a"),
    ):
        with pytest.raises(ConnectionError):
            call()


def test_listings_do_not_come_from_fsspecs_cache(monkeypatch):
    store = open_store(f"memory://{uuid.uuid4().hex}")
    forgotten = []
    monkeypatch.setattr(store._fs, "invalidate_cache", lambda *args: forgotten.append(args))
    for call in (store.list, store.exists):
        forgotten.clear()
        call("a")
        assert forgotten


def test_a_sink_of_an_object_store_uploads_once_and_only_at_the_end(monkeypatch):
    store = open_store(f"memory://{uuid.uuid4().hex}")
    uploads = []
    monkeypatch.setattr(store._fs, "pipe_file", lambda path, value, **kw: uploads.append(value))
    with store.open_sink("a", 4) as sink:
        sink.write_at(0, b"ab")
        sink.write_at(2, b"cd")
        assert uploads == []
    assert uploads == [b"abcd"]


def test_only_one_module_imports_fsspec():
    folder = Path(local_module.__file__).parent
    importing = re.compile(r"^\s*(import|from) fsspec", re.MULTILINE)
    assert [path.name for path in folder.glob("*.py") if importing.search(path.read_text())] == ["store.py"]


# ---- local


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o002])
def test_files_and_folders_obey_the_umask(local_store, umask):
    previous = os.umask(umask)
    try:
        local_store.put("a/put", b"x")
        local_store.create("a/create", b"x")
        with local_store.open_sink("a/sink", 1) as sink:
            sink.write_at(0, b"x")
    finally:
        os.umask(previous)
    for name in ("put", "create", "sink"):
        assert os.stat(os.path.join(local_store.url, "a", name)).st_mode & 0o777 == 0o666 & ~umask
    assert os.stat(os.path.join(local_store.url, "a")).st_mode & 0o777 == 0o777 & ~umask


def writes(store):
    """Each way to write."""

    def sink():
        with store.open_sink("a/b", 3) as sink:
            sink.write_at(0, b"xyz")

    return [lambda: store.put("a/b", b"xyz"), lambda: store.create("a/b", b"xyz"), sink]


def test_a_root_below_a_regular_file_is_named_with_a_way_out(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    store = open_store(tmp_path / "file" / "run")
    assert store.list("") == []
    for write in writes(store):
        with pytest.raises(NotADirectoryError, match=rf"cannot write into the store {tmp_path}/file/run; choose a dir"):
            write()


@pytest.mark.parametrize("code", [errno.EACCES, errno.EROFS, errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("call", ["mkdir", "open", "pwrite", "fsync"])
def test_an_error_of_the_system_keeps_its_type_and_names_the_path(local_store, monkeypatch, code, call):
    def refuse(*args):
        raise OSError(code, os.strerror(code))

    class Refusing:
        def __getattr__(self, name):
            return refuse if name == call else getattr(os, name)

    for write in writes(local_store):
        with monkeypatch.context() as patch:
            for module in (local_module, direct_module):
                patch.setattr(module, "os", Refusing())
            with pytest.raises(OSError, match="cannot write into the store") as caught:
                write()
        assert caught.value.errno == code
        assert type(caught.value) is type(OSError(code, ""))
        assert caught.value.filename.startswith(local_store.url)
    assert tree(local_store) == []


def test_a_full_disk_at_any_call_leaves_the_old_file_and_no_rest(local_store, monkeypatch):
    local_store.put("a/old", b"old")
    for number in range(40):
        for write in writes(local_store):
            faults = Faults(number)
            with monkeypatch.context() as patch:
                for module in (local_module, direct_module):
                    patch.setattr(module, "os", FaultyOs(faults))
                try:
                    write()
                except OSError as error:
                    assert error.errno == errno.ENOSPC  # noqa: PT017
            left = [key for key in tree(local_store) if key != "a/old"]
            if faults.failed != "unlink":  # then a temporary stays, for retention
                assert left in ([], ["a/b"])
            assert not local_store.exists("a/b") or local_store.read("a/b") == b"xyz"
            local_store.delete_tree("")
            local_store.put("a/old", b"old")


def test_create_without_hard_links_is_still_exclusive(local_store, monkeypatch):
    def no_links(*args):
        raise OSError(errno.EPERM, "no hard links here")

    monkeypatch.setattr(local_module.os, "link", no_links)
    contents = [b"%d" % number for number in range(8)]
    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(lambda data: local_store.create("a/b", data), contents))
    assert sum(won) == 1
    assert local_store.read("a/b") == contents[won.index(True)]
    assert tree(local_store) == ["a/b"]


def test_create_without_hard_links_leaves_nothing_on_a_full_disk(local_store, monkeypatch):
    def no_links(*args):
        raise OSError(errno.EPERM, "no hard links here")

    real, calls = os.fsync, []

    def second_fails(fd):
        calls.append(fd)
        if len(calls) == 3:  # the new folder, the temporary, the file itself
            raise OSError(errno.ENOSPC, "full")
        real(fd)

    monkeypatch.setattr(local_module.os, "link", no_links)
    monkeypatch.setattr(local_module.os, "fsync", second_fails)
    with pytest.raises(OSError, match="free some space"):
        local_store.create("b", b"x")
    monkeypatch.undo()
    assert tree(local_store) == []


def test_a_link_whose_reply_was_lost_counts_as_made(local_store, monkeypatch):
    real = os.link

    def lost(source, target):
        real(source, target)
        raise FileExistsError(errno.EEXIST, "exists", target)

    monkeypatch.setattr(local_module.os, "link", lost)
    assert local_store.create("a", b"x") is True


def test_of_many_processes_that_create_at_once_one_wins(local_store):
    def work():
        for number in range(20):
            if local_store.create(f"claims/{number}", b"%d" % os.getpid()):
                local_store.put(f"won/{number}-{os.getpid()}", b"")

    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(in_child, [work] * 3)) == [0, 0, 0]
    assert sorted({name.split("-")[0] for name in local_store.list("won")}, key=int) == [str(n) for n in range(20)]
    assert len(local_store.list("won")) == 20


def test_new_folders_are_synced_in_their_parents(tmp_path, monkeypatch):
    synced = []
    real = local_module.sync_folder
    monkeypatch.setattr(local_module, "sync_folder", lambda path: (synced.append(path), real(path)))
    open_store(tmp_path / "x" / "run").put("a/b", b"x")
    below = [tmp_path, tmp_path / "x", tmp_path / "x/run", tmp_path / "x/run/a"]
    assert synced == [str(path) for path in below]


def test_a_file_system_that_cannot_sync_folders_is_accepted(local_store, monkeypatch):
    real = os.fsync

    def no_folders(fd):
        if os.path.isdir(f"/proc/self/fd/{fd}"):
            raise OSError(errno.EINVAL, "invalid")
        real(fd)

    monkeypatch.setattr(local_module.os, "fsync", no_folders)
    local_store.put("a/b", b"x")
    assert local_store.read("a/b") == b"x"


def test_a_short_write_is_continued(local_store, monkeypatch):
    real = os.pwrite
    monkeypatch.setattr(local_module.os, "pwrite", lambda fd, data, at: real(fd, data[:3], at))
    local_store.put("a", b"0123456789")
    assert local_store.read("a") == b"0123456789"


def test_links_are_replaced_and_removed_never_followed(local_store, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_bytes(b"precious")
    local_store.put("a/b", b"x")
    for name in ("put", "create", "delete", "sink"):
        os.symlink(outside / "precious", os.path.join(local_store.url, "a", name))
    os.symlink(outside, os.path.join(local_store.url, "a", "folder"))
    local_store.put("a/put", b"new")
    assert local_store.create("a/create", b"new") is False
    local_store.delete("a/delete")
    with local_store.open_sink("a/sink", 1) as sink:
        sink.write_at(0, b"x")
    local_store.delete_tree("a")
    assert (outside / "precious").read_bytes() == b"precious"
    assert local_store.list("") == []


def test_a_folder_that_the_system_will_not_make_is_an_error_and_not_an_endless_climb(tmp_path, monkeypatch):
    def refuses(path, *args, **kwargs):  # as /proc does, whose parent exists
        raise FileNotFoundError(2, "No such file or directory", path)

    monkeypatch.setattr(os, "mkdir", refuses)
    with pytest.raises(FileNotFoundError):
        make_folder(str(tmp_path / "folder"))
    with pytest.raises(FileNotFoundError):
        make_folder(str(tmp_path / "a" / "b"))


@pytest.mark.parametrize("most_bytes", [1, 7, 100])
def test_a_read_that_the_system_cuts_short_goes_on_where_it_stopped(local_store, monkeypatch, most_bytes):
    """readv may return less than was asked for, in the middle of a view too."""
    data, whole = bytes(range(200)), os.readv

    def readv(fd, views):
        joined = bytearray(min(most_bytes, sum(view.nbytes for view in views)))
        num_read, start = whole(fd, [joined]), 0
        for view in views:
            length = min(view.nbytes, num_read - start)
            view[:length] = joined[start : start + length]
            start += length
        return num_read

    local_store.put("a", data)
    monkeypatch.setattr(os, "readv", readv)
    views = [memoryview(bytearray(size)) for size in (1, 30, 0, 64, 5, 50)]
    local_store.read_scattered("a", 10, views)
    assert b"".join(views) == data[10:160]


def test_a_folder_whose_parent_another_process_makes_at_that_moment_is_made(tmp_path, monkeypatch):
    plain, calls = os.mkdir, []

    def late(path, *args):
        calls.append(path)
        if len(calls) == 1:
            plain(tmp_path / "root")
            raise FileNotFoundError(2, "no parent when we looked", str(path))
        plain(path, *args)

    monkeypatch.setattr("resume_core.storage.local.os.mkdir", late)
    make_folder(str(tmp_path / "root" / "attempt"))
    assert (tmp_path / "root" / "attempt").is_dir()
