"""The stores that need no server: the contract, and what a kind adds to it."""

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

from resume_core.storage import absolute, folders, open_store
from resume_core.storage import local as local_module
from resume_core.storage.folders import make_folder
from resume_core.storage.local import LocalStore
from resume_core.storage.remote import FsspecStore

from .contract import StoreContract
from .faults import Faults
from .helpers import OS_MODULES, FaultyOs, in_child, tree


class TestLocal(StoreContract):
    @pytest.fixture
    def url(self, tmp_path):
        return tmp_path / "new" / "run"


class TestMemory(StoreContract):
    @pytest.fixture
    def url(self):
        return f"memory://{uuid.uuid4().hex}/run"


class TestFsspecWithFolders(StoreContract):
    """The generic store on a file system that wants its folders made first and has a rename."""

    @pytest.fixture
    def reopen(self, tmp_path):
        def reopen():
            store = FsspecStore(f"file://{tmp_path}/run")
            store.delete_empty = lambda prefix: LocalStore(f"{tmp_path}/run").delete_empty(prefix)
            return store

        return reopen

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


def test_a_path_with_two_colons_is_a_path_and_a_chain_of_protocols_is_none(tmp_path):
    assert open_store(tmp_path / "lr::0.1").url == str(tmp_path / "lr::0.1")
    assert absolute(tmp_path / "lr::0.1") == str(tmp_path / "lr::0.1")
    chain = f"dir::file://{tmp_path}"
    assert absolute(chain) == chain
    assert absolute("memory://x") == "memory://x"


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


def test_a_sink_of_a_remote_store_shows_nothing_before_its_end(memory_store):
    with memory_store.open_sink("a", 4) as sink:
        sink.write_at(0, b"ab")
        sink.write_at(2, b"cd")
        assert not memory_store.exists("a")
    assert tree(memory_store) == ["a"]


def test_only_one_module_imports_fsspec():
    folder = Path(local_module.__file__).parent
    importing = re.compile(r"^\s*(import|from) fsspec", re.MULTILINE)
    assert [path.name for path in folder.glob("*.py") if importing.search(path.read_text())] == ["remote.py"]


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
        with pytest.raises(NotADirectoryError, match=rf"cannot write into {tmp_path}/file/run: Not a .*; choose a dir"):
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
            for module in OS_MODULES:
                patch.setattr(module, "os", Refusing())
            with pytest.raises(OSError, match="cannot write into ") as caught:
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
                for module in OS_MODULES:
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
    real = folders.sync_folder
    for module in (local_module, folders):
        monkeypatch.setattr(module, "sync_folder", lambda path: (synced.append(path), real(path)))
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


def test_what_a_disk_refuses_once_is_read_by_another_handle(local_store, monkeypatch):
    plain, reads, opened = os.readv, [], []

    def readv(fd, views):
        reads.append(fd)
        if len(reads) == 1:
            raise OSError(errno.EIO, "Input/output error")
        return plain(fd, views)

    local_store.put("a", b"0123456789")
    monkeypatch.setattr(os, "readv", readv)
    monkeypatch.setattr("resume_core.storage.local._READ_PAUSE_S", 0)
    view = memoryview(bytearray(4))

    def noted(*args, **options):
        opened.append(args)
        return open(*args, **options)

    monkeypatch.setattr("resume_core.storage.local.open", noted, raising=False)
    with local_store.open_file("a") as file:
        file.read_scattered(3, [view])
        file.read_scattered(3, [view])
    assert (bytes(view), len(reads), len(opened)) == (b"3456", 3, 2)


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
