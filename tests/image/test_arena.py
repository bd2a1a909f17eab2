import gc
import mmap
import os

import pytest
import torch

from resume_core.image import Arena


def smaps(arena, name):
    """Bytes that the kernel counts under ``name`` for the arena's mapping; "Rss" are those really handed out."""
    start = f"{arena.tensor.data_ptr():x}-"
    with open("/proc/self/smaps") as file:
        lines = iter(file)
        for line in lines:
            if line.startswith(start):
                return next(int(row.split()[1]) * 1024 for row in lines if row.startswith(f"{name}:"))
    raise AssertionError("the arena is no mapping of its own")


def test_memory_starts_on_a_page_and_is_a_whole_number_of_pages():
    arena = Arena()
    assert arena.reserve(10_001)
    assert arena.tensor.data_ptr() % mmap.PAGESIZE == 0
    assert arena.size_bytes == -(-10_001 // mmap.PAGESIZE) * mmap.PAGESIZE


@pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="needs /proc/self/smaps of Linux")
@pytest.mark.parametrize("populate", [True, False], ids=["madvise", "fallback"])
def test_every_page_is_in_memory_before_use(monkeypatch, populate):
    if not populate:
        monkeypatch.setattr("resume_core.image.arena._POPULATE_WRITE", -1)
    arena = Arena()
    arena.reserve(5 * 2**20)
    arena.wait()
    assert smaps(arena, "Rss") >= arena.size_bytes


def test_it_grows_and_never_shrinks():
    arena = Arena()
    assert arena.reserve(100_000)
    tensor = arena.tensor
    assert not arena.reserve(100_000)
    assert not arena.reserve(1)
    assert arena.tensor is tensor
    assert arena.reserve(200_000)
    assert arena.size_bytes >= 200_000


def test_views_and_the_tensor_show_the_same_memory():
    arena = Arena()
    arena.reserve(100)
    arena.view(10, 3)[:] = b"abc"
    assert bytes(arena.tensor[10:13].tolist()) == b"abc"


def test_a_view_of_before_stays_readable_after_growing():
    arena = Arena()
    arena.reserve(4096)
    view = arena.view(0, 3)
    view[:] = b"old"
    arena.reserve(10**6)
    assert bytes(view) == b"old"


@pytest.mark.parametrize(("offset", "nbytes"), [(-1, 1), (0, -1), (0, 4097), (4096, 1)])
def test_a_view_outside_is_refused(offset, nbytes):
    arena = Arena()
    arena.reserve(4096)
    with pytest.raises(ValueError, match="outside"):
        arena.view(offset, nbytes)


def test_an_arena_without_memory_has_an_empty_view():
    assert bytes(Arena().view(0, 0)) == b""
    with pytest.raises(ValueError, match="negative"):
        Arena().reserve(-1)


def test_memory_taken_in_inference_mode_can_be_written_to_outside():
    arena = Arena()
    with torch.inference_mode():
        arena.reserve(4096)
    arena.tensor[0] = 1
    assert not arena.tensor.is_inference()


@pytest.fixture(params=["private", "shared"])
def arena(request, monkeypatch):
    """One of each kind of mapping: the second is what an older kernel or another system gets."""
    if request.param == "shared":
        monkeypatch.setattr("resume_core.image.arena._WIPE_ON_FORK", -1)
    arena = Arena()
    arena.reserve(4 << 20)
    arena.wait()
    return arena


@pytest.fixture
def child():
    """A forked process that lives as long as the test."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(write)
        os.read(read, 1)
        os._exit(0)
    yield pid
    os.close(read)
    os.close(write)
    os.waitpid(pid, 0)


@pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="needs /proc/self/smaps of Linux")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_fork_makes_no_page_fresh_again(arena, child):
    assert smaps(arena, "Shared_Dirty") + smaps(arena, "Shared_Clean") == 0  # shared until the next write: then copied
    assert smaps(arena, "Rss") == arena.size_bytes


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_child_that_lets_go_of_the_arena_ends_well(arena):
    arena.view(0, 3)[:] = b"old"
    pid = os.fork()
    if pid == 0:
        try:
            arena.__dict__.clear()
            gc.collect()
        except BaseException:
            os._exit(1)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    assert bytes(arena.view(0, 3)) == b"old"


@pytest.mark.skipif(
    not os.path.exists("/sys/kernel/mm/transparent_hugepage/enabled"), reason="needs huge pages of Linux"
)
def test_pages_are_huge_where_the_kernel_gives_them():
    with open("/sys/kernel/mm/transparent_hugepage/enabled") as file:
        if "[never]" in file.read():
            pytest.skip("this kernel gives none")
    arena = Arena()
    arena.reserve(16 << 20)
    arena.wait()
    assert smaps(arena, "AnonHugePages") > 0
