import mmap
import os

import pytest
import torch

from resume_core.image import Arena


def resident_bytes(arena):
    """What the kernel has really handed out of the arena, from /proc/self/smaps."""
    start = f"{arena.tensor.data_ptr():x}-"
    with open("/proc/self/smaps") as file:
        lines = iter(file)
        for line in lines:
            if line.startswith(start):
                return next(int(row.split()[1]) * 1024 for row in lines if row.startswith("Rss:"))
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
    assert resident_bytes(arena) >= arena.size_bytes


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


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_memory_is_mapped_shared_so_that_a_fork_makes_no_page_fresh_again():
    arena = Arena()
    arena.reserve(4096)
    child = os.fork()
    if child == 0:
        try:
            arena.view(0, 1)[:] = b"x"
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert arena.tensor[0] == ord("x")
