"""Writing past the page cache gives the same files as writing through it, wherever it can be had or not."""

from __future__ import annotations

import errno
import mmap
import os

import pytest

from resume_core.storage import direct
from resume_core.storage.direct import DirectFile

PAGE = 4096
SIZES = [0, 1, PAGE - 1, PAGE, PAGE + 1, 3 * PAGE, 300 * PAGE + 17, (1 << 20) + 5]


@pytest.fixture(params=["disk", "memory"])
def folder(request, tmp_path):
    """A file system that takes O_DIRECT here, and one that may not."""
    if request.param == "disk":
        yield tmp_path
        return
    if not os.access("/dev/shm", os.W_OK):
        pytest.skip("no /dev/shm")
    path = f"/dev/shm/exact-resume-test-{os.getpid()}"
    os.mkdir(path)
    yield type(tmp_path)(path)
    for name in os.listdir(path):
        os.unlink(os.path.join(path, name))
    os.rmdir(path)


@pytest.fixture(autouse=True)
def _small_files_too(monkeypatch):
    monkeypatch.setattr(direct, "_MIN_BYTES", 1)


def aligned(size):
    memory = mmap.mmap(-1, max(size, 1))
    memory[:size] = bytes(i * 7 % 251 for i in range(size))
    return memoryview(memory)[:size]


def written(path, size, pieces):
    file = DirectFile.create(str(path), size)
    for offset, data in pieces:
        file.write_at(offset, data)
    file.sync()
    file.close()
    return path.read_bytes()


@pytest.mark.parametrize("size", SIZES)
def test_any_size_arrives_whole(folder, size):
    data = aligned(size)
    assert written(folder / "file", size, [(0, data)]) == bytes(data)


def test_pieces_arrive_in_any_order(folder):
    data = aligned(10 * PAGE + 100)
    pieces = [(start, data[start : start + 3 * PAGE]) for start in (9 * PAGE, 0, 6 * PAGE, 3 * PAGE)]
    assert written(folder / "file", len(data), pieces) == bytes(data)


def test_memory_that_is_not_aligned_is_written_all_the_same(folder):
    data = aligned(9 * PAGE)[5 : 5 + 8 * PAGE]
    assert written(folder / "file", len(data), [(0, data)]) == bytes(data)


def test_offsets_that_are_not_aligned(folder):
    data = aligned(8 * PAGE)
    assert written(folder / "file", 8 * PAGE, [(0, data[:100]), (100, data[100:])]) == bytes(data)


def test_bytes_that_cannot_be_written_to_are_fine(folder):
    assert written(folder / "file", 2 * PAGE, [(0, memoryview(bytes(2 * PAGE)))]) == bytes(2 * PAGE)


def test_the_page_cache_is_passed_by_where_that_can_be_had(tmp_path):
    file = DirectFile.create(str(tmp_path / "file"), 1 << 20)
    if not file.is_direct:
        pytest.skip("this file system takes no O_DIRECT")
    file.write_at(0, aligned(1 << 20))
    assert file.is_direct
    file.close()


def refusing(monkeypatch, name, code, when):
    plain = getattr(os, name)

    class Os:
        def __getattr__(self, other):
            return getattr(os, other)

    def call(*args):
        if when(*args):
            raise OSError(code, os.strerror(code))
        return plain(*args)

    stand_in = Os()
    setattr(stand_in, name, call)
    monkeypatch.setattr(direct, "os", stand_in)


@pytest.mark.parametrize("code", [errno.EINVAL, errno.EOPNOTSUPP])
def test_a_file_system_that_refuses_the_flag_is_written_the_ordinary_way(tmp_path, monkeypatch, code):
    refusing(monkeypatch, "open", code, lambda path, flags, mode: flags & direct._O_DIRECT)
    data = aligned(5 * PAGE)
    assert written(tmp_path / "file", len(data), [(0, data)]) == bytes(data)


def test_a_file_system_that_refuses_the_first_write_is_written_the_ordinary_way(tmp_path, monkeypatch):
    def is_direct(fd, data, offset):
        return direct.fcntl.fcntl(fd, direct.fcntl.F_GETFL) & direct._O_DIRECT

    refusing(monkeypatch, "pwrite", errno.EINVAL, is_direct)
    data = aligned(5 * PAGE)
    assert written(tmp_path / "file", len(data), [(0, data)]) == bytes(data)


def test_other_errors_come_out(tmp_path, monkeypatch):
    refusing(monkeypatch, "pwrite", errno.EIO, lambda *args: True)
    with pytest.raises(OSError, match="Input/output"):
        written(tmp_path / "file", PAGE, [(0, aligned(PAGE))])


def test_a_file_that_exists_is_left_alone(tmp_path):
    (tmp_path / "file").write_text("of the user")
    with pytest.raises(FileExistsError):
        DirectFile.create(str(tmp_path / "file"), PAGE)
    assert (tmp_path / "file").read_text() == "of the user"


def test_a_file_larger_than_the_disk_is_refused_before_it_is_written(tmp_path):
    with pytest.raises(OSError) as refused:
        DirectFile.create(str(tmp_path / "file"), 1 << 60)
    assert refused.value.errno in (errno.ENOSPC, errno.EFBIG)
    assert os.listdir(tmp_path) == []


def test_the_umask_decides_who_may_read(tmp_path):
    before = os.umask(0o027)
    try:
        DirectFile.create(str(tmp_path / "file"), PAGE).close()
    finally:
        os.umask(before)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o640
