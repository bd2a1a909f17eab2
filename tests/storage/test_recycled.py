"""The next checkpoint is written over the files of a pruned one, and nobody else ever sees a file change."""

from __future__ import annotations

import errno
import gc
import mmap
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import pytest
from walks import Walk

from resume_core.policy import Keep, SaveEvery
from resume_core.ranks import Ranks
from resume_core.session import Session
from resume_core.state import Progress
from resume_core.storage import Lineage, clean, direct, folders, open_store, prune, recycled

from .helpers import Run, candidates, in_child, load, paths, tree

PAGE = 4096
FILE = "attempt-0001-7f3a/step-000000001/model.safetensors"
NEXT = "attempt-0001-7f3a/step-000000002/model.safetensors"


@pytest.fixture(autouse=True)
def _small_files_too(monkeypatch):
    monkeypatch.setattr(direct, "_MIN_BYTES", 1)


@pytest.fixture
def store(tmp_path):
    found = open_store(tmp_path / "run")
    write(found, FILE, b"old")
    with open(tmp_path / "run" / FILE, "rb") as file:
        if recycled.trace_of(file.fileno()) is None:
            pytest.skip("this file system gains nothing by it")
    return found


def content(tag, num_pages=3):
    return (tag * PAGE * num_pages)[: PAGE * num_pages]


def write(store, key, tag, num_pages=3):
    data = content(tag, num_pages)
    with store.open_sink(key, len(data)) as sink:
        sink.write_at(0, data)


def inode(store, key):
    return os.stat(os.path.join(store.url, key)).st_ino


def written_anew(store, change=lambda path: None, num_pages=3):
    """Recycle the first file after ``change``, write the next: whether that lies in other blocks; its content is right
    in any case, and nothing else is left."""
    before = inode(store, FILE)
    pin = os.open(os.path.join(store.url, FILE), os.O_PATH)  # no number of an inode is given out twice
    change(os.path.join(store.url, FILE))
    store.recycle(FILE)
    assert not store.exists(FILE)
    write(store, NEXT, b"new", num_pages)
    os.close(pin)
    assert store.read(NEXT) == content(b"new", num_pages)
    assert [key for key in tree(store) if not key.endswith("other")] == [NEXT]
    return inode(store, NEXT) != before


def test_a_file_of_its_name_is_written_over_it(store):
    assert not written_anew(store)


def test_one_that_needs_less_space_takes_it_and_gives_the_rest_back(store):
    assert not written_anew(store, num_pages=1)
    found = os.stat(os.path.join(store.url, NEXT))
    assert (found.st_size, found.st_blocks * 512) == (PAGE, PAGE)


def test_one_that_needs_more_space_is_written_anew(store):
    assert written_anew(store, num_pages=4)


def test_until_then_it_lies_aside_and_counts_as_free_space(store):
    free_before = store.usage()[0]
    store.recycle(FILE)
    (aside,) = tree(store)
    assert aside.startswith("attempt-0001-7f3a/.model.safetensors.")
    assert recycled.kept_bytes(os.stat(store.url).st_dev) == 3 * PAGE
    assert store.usage()[0] >= free_before - (1 << 30)
    store.delete(aside)
    write(store, NEXT, b"new")
    assert store.read(NEXT) == content(b"new")


def test_of_each_name_one_is_kept(store):
    write(store, NEXT, b"new")
    store.recycle(FILE)
    (first,) = [key for key in tree(store) if key.endswith(".tmp")]
    store.recycle(NEXT)
    (second,) = tree(store)
    assert first != second


@pytest.mark.parametrize("key", [NEXT.replace("model", "training"), "attempt-0001-7f3a/other/x"])
def test_files_of_another_name_are_written_anew(store, key):
    before = inode(store, FILE)
    store.recycle(FILE)
    write(store, key, b"new")
    assert inode(store, key) != before


@contextmanager
def _opened(path, flags=os.O_RDONLY):
    fd = os.open(path, flags)
    yield
    os.close(fd)


@contextmanager
def _mapped(path):
    with open(path, "rb") as file:
        memory = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    yield
    assert memory[:] == content(b"old")
    memory.close()


@contextmanager
def _mapped_in_another_process(path):
    script = (
        "import mmap, sys; f = open(sys.argv[1], 'rb'); m = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ); f.close(); "
        "print('mapped', flush=True); sys.stdin.read(); sys.exit(m[:3] != b'old')"
    )
    process = subprocess.Popen([sys.executable, "-c", script, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"mapped\n"
    yield
    process.communicate()
    assert process.returncode == 0


READERS = {
    "read": _opened,
    "written": lambda path: _opened(path, os.O_WRONLY),
    "mapped": _mapped,
    "mapped elsewhere": _mapped_in_another_process,
}


@pytest.mark.parametrize("reader", READERS.values(), ids=READERS)
def test_a_file_that_somebody_has_open_or_mapped_stays_as_it_is(store, tmp_path, reader):
    with reader(os.path.join(store.url, FILE)):
        assert written_anew(store)


def test_what_a_reader_has_passed_on_and_is_still_on_its_way_stays_as_it_is(store):
    """splice(2), as sendfile(2) of a server does, puts pages of the cache into a pipe or a socket, not copies."""

    def save(key, tag, num_bytes=2 * PAGE + 100):
        memory = mmap.mmap(-1, num_bytes)  # whole pages go past the cache, as those of an arena
        memory.write(tag * num_bytes)
        with store.open_sink(key, num_bytes) as sink:
            sink.write_at(0, memoryview(memory))

    save(FILE, b"a")
    before = inode(store, FILE)
    out, into = os.pipe()
    with open(os.path.join(store.url, FILE), "rb") as file:
        num_bytes = os.splice(file.fileno(), into, 2 * PAGE + 100)
    store.recycle(FILE)
    save(NEXT, b"b", 2 * PAGE + 50)
    assert os.read(out, num_bytes) == b"a" * num_bytes
    assert store.read(NEXT) == b"b" * (2 * PAGE + 50)
    assert inode(store, NEXT) == before
    os.close(out)
    os.close(into)


def test_once_the_reader_is_gone_it_may_be_written_over(store):
    with _opened(os.path.join(store.url, FILE)):
        pass
    assert not written_anew(store)


CHANGES = {
    "a second name": lambda path: os.link(path, f"{path}.other"),
    "other rights": lambda path: os.chmod(path, 0o400),
    "another owner": lambda path: os.chown(path, 1234, 1234),
    "an attribute": lambda path: os.setxattr(path, "user.sha256", b"of what was there"),
    "other content": lambda path: os.truncate(path, PAGE),
    "another file": lambda path: (os.rename(path, f"{path}.other"), open(path, "wb").close()),
    "a link": lambda path: (os.rename(path, f"{path}.other"), os.symlink(f"{path}.other", path)),
}


def changed(change, path):
    try:
        change(path)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP):
            raise
        pytest.skip(f"this user, or this file system, cannot: {error}")


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_what_is_not_the_file_that_was_written_any_more_stays_as_it_is(store, change):
    assert written_anew(store, lambda path: changed(change, path))
    for key in tree(store):
        assert not key.endswith("other") or store.read(key) == content(b"old")


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_and_neither_is_it_when_that_happens_to_it_aside(store, change):
    before = inode(store, FILE)
    store.recycle(FILE)
    (aside,) = tree(store)
    changed(change, os.path.join(store.url, aside))
    write(store, NEXT, b"new")
    assert store.read(NEXT) == content(b"new")
    found = os.stat(os.path.join(store.url, NEXT))
    assert (found.st_uid, os.listxattr(os.path.join(store.url, NEXT))) == (os.geteuid(), [])
    others = [key for key in tree(store) if key.endswith("other")]
    assert [store.read(key) for key in others] == [content(b"old")] * len(others)
    assert inode(store, NEXT) != before or not others


@pytest.mark.parametrize("key", ["model.safetensors", "attempt-0001-7f3a/model.safetensors"])
def test_nothing_is_moved_out_of_the_store(store, key):
    write(store, key, b"old")
    store.recycle(key)
    assert tree(store) == [FILE]


def test_files_of_another_process_are_deleted(store):
    other = open_store(store.url)  # as after a restart
    other.recycle(FILE)
    assert tree(store) == []


def test_memory_has_no_use_for_it(monkeypatch):
    if not os.access("/dev/shm", os.W_OK):
        pytest.skip("no /dev/shm")
    store = open_store(f"/dev/shm/exact-resume-recycled-{os.getpid()}")
    try:
        write(store, FILE, b"old")
        store.recycle(FILE)
        assert tree(store) == []
    finally:
        store.delete_tree("")
        os.rmdir(store.url)


def test_where_leases_cannot_be_had_files_are_written_anew(store, monkeypatch):
    def refuse(fd):
        raise OSError(errno.EINVAL, "no leases here")

    monkeypatch.setattr(recycled, "_is_alone", refuse)
    assert written_anew(store)


@pytest.fixture
def late_reader(monkeypatch):
    """Somebody opens a file while it is under a lease; what that said."""
    real, said = recycled.fcntl, []

    class Late:
        def __getattr__(self, name):
            return getattr(real, name)

        def fcntl(self, fd, command, value):
            done = real.fcntl(fd, command, value)
            if (command, value) == (real.F_SETLEASE, real.F_WRLCK):
                path = os.readlink(f"/proc/self/fd/{fd}")
                script = "import os, sys; os.open(sys.argv[1], os.O_RDONLY | os.O_NONBLOCK)"
                found = subprocess.run([sys.executable, "-c", script, path], capture_output=True, text=True)
                said.append(found.stderr)
            return done

    monkeypatch.setattr(recycled, "fcntl", Late())
    return said


def test_one_who_opens_it_in_that_very_moment_waits_and_ends_nobody(store, late_reader):
    assert not written_anew(store)
    assert "BlockingIOError" in late_reader[0]


def test_and_no_handler_of_the_user_hears_of_it(store, late_reader):
    heard = []
    before = {number: signal.signal(number, lambda *_: heard.append(1)) for number in (signal.SIGURG, signal.SIGIO)}
    try:
        assert not written_anew(store)
        time.sleep(0.05)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert "BlockingIOError" in late_reader[0]
    assert heard == []


def test_where_no_thread_can_be_had_files_are_written_anew(store, monkeypatch):
    class None_(threading.Thread):
        def start(self):
            raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(recycled.threading, "Thread", None_)
    assert written_anew(store)


def test_what_is_aside_goes_when_nothing_is_written_any_more(store):
    store.recycle(FILE)
    store.release()
    assert tree(store) == []
    store.release()


def test_and_with_the_store_itself(store):
    root = store.url
    found = open_store(root)
    write(found, NEXT, b"new")
    found.recycle(NEXT)
    assert any(key.endswith(".tmp") for key in tree(store))
    del found
    gc.collect()
    assert tree(store) == [FILE]


def test_a_process_that_was_forked_off_leaves_it_to_its_owner(store):
    store.recycle(FILE)
    before = tree(store)

    def work():
        write(store, NEXT, b"new")
        store.release()

    assert in_child(work) == 0
    assert tree(store) == [*before, NEXT]


def test_a_disk_that_is_full_gets_it_back(store, monkeypatch):
    store.recycle(FILE)
    plain, refused = direct.DirectFile.create, []

    def create(path, size_bytes):
        if not refused:
            refused.append(path)
            raise OSError(errno.ENOSPC, "full")
        return plain(path, size_bytes)

    monkeypatch.setattr(direct.DirectFile, "create", create)
    write(store, NEXT.replace("model", "training"), b"new")
    assert tree(store) == [NEXT.replace("model", "training")]
    refused.clear()
    with pytest.raises(OSError, match="cannot write into "):
        write(store, NEXT, b"new")


SMALL = {
    "put": lambda store: store.put("attempt-0001-7f3a/history.json", b"{}"),
    "create": lambda store: store.create("attempt-0002-7f3a/attempt.json", b"{}"),
    "a new folder": lambda store: write(store, "attempt-0003-7f3a/step-000000001/rank-00000.json", b"x", 1),
}


@pytest.fixture
def full_disk(store, monkeypatch):
    """As long as something lies aside, no system call that makes or fills a file has any space."""

    class Full:
        def __getattr__(self, name):
            return getattr(os, name)

        def _room(self, *_):
            if any(key.endswith(".tmp") and key.count("/") == 1 and "model" in key for key in tree(store)):
                raise OSError(errno.ENOSPC, "full")

        def mkdir(self, *args):
            self._room()
            return os.mkdir(*args)

        def pwrite(self, *args):
            self._room()
            return os.pwrite(*args)

    for module in (direct, folders):
        monkeypatch.setattr(module, "os", Full())


@pytest.mark.parametrize("write_small", SMALL.values(), ids=SMALL)
def test_so_does_a_disk_that_has_no_room_for_anything_else(store, full_disk, write_small):
    store.recycle(FILE)
    write_small(store)
    assert not [key for key in tree(store) if key.endswith(".tmp")]


def test_so_does_one_that_cannot_be_given_the_space_beforehand(store, full_disk):
    with store.open_sink(NEXT.replace("model", "training"), 3 * PAGE) as sink:
        store.recycle(FILE)
        sink.write_at(0, content(b"new"))
    assert store.read(NEXT.replace("model", "training")) == content(b"new")


def test_a_full_disk_gets_back_what_another_store_has_moved_aside_there(store, full_disk, tmp_path):
    store.recycle(FILE)
    scratch = open_store(tmp_path / "scratch")
    free, aside = scratch.usage()[0], recycled.kept_bytes(os.stat(tmp_path).st_dev)
    assert aside == 3 * PAGE
    assert free > aside
    write(scratch, FILE, b"new")
    assert scratch.read(FILE) == content(b"new")
    assert tree(store) == []


def test_a_write_over_it_that_fails_leaves_nothing(store):
    store.recycle(FILE)
    sink = store.open_sink(NEXT, PAGE)
    with pytest.raises(ValueError, match="10 of 4096 bytes"), sink:
        sink.write_at(0, b"x" * 10)
    assert tree(store) == []


# ---- through retention


def test_a_run_saves_over_what_it_has_pruned(store):
    store.delete_tree("")
    run = Run(store)
    run.save(1, "old")
    path = os.path.join(store.url, candidates(store)[0].path, "training.safetensors")
    first = os.stat(path).st_ino
    run.save(2, "mid")
    assert run.prune().deleted
    assert not os.path.exists(os.path.dirname(path))
    run.save(3, "new")
    assert inode(store, f"{candidates(store)[0].path}/training.safetensors") == first
    assert [load(store, ref) for ref in candidates(store)] == ["new", "mid"]


def test_so_does_one_that_thins(store):
    store.delete_tree("")
    run = Run(store)
    old = run.save(1, "old")
    first = inode(store, f"{old.path}/training.safetensors")
    run.save(2, "mid")
    prune(run.lineage, Keep(last=1, every_steps=1, thin_after=1), run.attempt)
    assert "weights.json" in store.list(old.path)
    new = run.save(3, "new")
    assert inode(store, f"{new.path}/training.safetensors") == first


def test_what_a_killed_run_has_left_aside_is_deleted_at_the_next_start(store):
    store.delete_tree("")

    def work():
        run = Run(store)
        run.save(1, "old")
        run.save(2, "new")
        run.prune()
        os.kill(os.getpid(), signal.SIGKILL)

    assert in_child(work) == -signal.SIGKILL
    assert [key for key in tree(store) if ".model.safetensors." in key]
    run = Run(store, restored_from=candidates(store)[0])
    assert not clean(run.lineage, run.attempt).failures
    assert [key for key in tree(store) if key.endswith(".tmp")] == []
    assert [load(store, ref) for ref in candidates(store)] == ["new"]


def test_a_command_that_prunes_keeps_nothing(store):
    store.delete_tree("")
    run = Run(store)
    run.save(1, "old")
    run.save(2, "new")
    lineage = Lineage(open_store(store.url))
    assert paths(lineage.candidates()) == paths(candidates(store))
    prune(lineage, Keep(last=1), run.attempt)
    assert [key for key in tree(store) if key.endswith(".tmp")] == []


def test_a_prune_that_ends_after_its_session_keeps_nothing(tmp_path):
    directory = tmp_path / "run"
    walk = Walk(Ranks(), {})
    session = Session(walk, str(directory), save=SaveEvery(steps=1, minutes=None), keep=Keep(last=1))
    session.start(7)
    session.begin(Progress())
    found = open_store(directory)
    for step in (1, 2):
        walk.step()
        session._saves.writer.wait()
        session.boundary(Progress(step=step, batch=step))
    session._saves.wait()
    aside = [key for key in tree(found) if key.endswith(".tmp")]
    with open(directory / "probe", "wb") as file:
        assert aside or recycled.trace_of(file.fileno()) is None
    saves, store = session._saves, session._saves._lineage.store
    session.end()
    assert [key for key in tree(found) if key.endswith(".tmp")] == []
    late = Run(store)
    late.save(1, "old")
    late.save(2, "new")
    saves._attempt = late.attempt
    saves._prune(store)
    assert len(candidates(store)) == 1
    assert [key for key in tree(store) if key.endswith(".tmp")] == []
