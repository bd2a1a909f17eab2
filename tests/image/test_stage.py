import copy
import os
import random
import threading

import pytest
import torch
from parsing import parse

from resume_core.image import Arena, FileSpec, Stager, flatten, unflatten
from resume_core.image.progress import Progress
from resume_core.image.stage import has_spare_core
from tests.image.helpers import assert_same


def stage(stager, tree, **options):
    (image,) = stager.stage([FileSpec("a.safetensors", flatten(tree).tensors, **options)])
    return image


def test_an_image_is_a_snapshot_that_later_changes_do_not_reach():
    state = {"w": torch.randn(5, requires_grad=True), "m": torch.randn(3, 4).t()}
    before = copy.deepcopy({"w": state["w"].detach().clone(), "m": state["m"]})
    image = stage(Stager(Arena()), state)
    with torch.no_grad():
        state["w"].zero_()
        state["m"].add_(1)
    restored = unflatten(flatten(before).structure, parse(image.buffer))
    assert_same(before, restored)


def test_staging_again_takes_no_new_memory_and_makes_no_new_views():
    arena = Arena()
    stager = Stager(arena)
    state = {f"p{i}": torch.randn(50) for i in range(20)}
    addresses, sizes = set(), set()
    for step in range(100):
        state["p3"].fill_(step)
        image = stage(stager, state)
        addresses.add(arena.tensor.data_ptr())
        sizes.add(arena.size_bytes)
        assert parse(image.buffer)["p3"][0] == step
    assert len(addresses) == len(sizes) == 1


def test_every_image_starts_on_a_page_and_holds_its_own_file():
    files = [FileSpec(f"{i}.safetensors", {"x": torch.full((i + 1,), float(i))}, plain=i == 0) for i in range(4)]
    images = Stager(Arena()).stage(files)
    for i, image in enumerate(images):
        assert image.name == f"{i}.safetensors"
        assert image.size_bytes == len(image.buffer)
        assert torch.frombuffer(image.buffer, dtype=torch.uint8).data_ptr() % 4096 == 0
        assert parse(image.buffer)["x"].tolist() == [float(i)] * (i + 1)


def test_a_structure_that_changes_is_planned_again():
    stager = Stager(Arena())
    assert parse(stage(stager, {"a": torch.ones(2)}).buffer)["a"].tolist() == [1, 1]
    grown = stage(stager, {"a": torch.ones(2), "b": torch.full((10_000,), 2.0)})
    assert parse(grown.buffer)["b"].eq(2).all()
    assert parse(stage(stager, {"a": torch.zeros(2)}).buffer)["a"].tolist() == [0, 0]


def test_a_file_that_moves_because_the_one_before_it_grew_is_still_right():
    stager = Stager(Arena())
    last = {"y": torch.arange(5)}
    for num in (1, 5000, 3):
        _, image = stager.stage([FileSpec("a", {"x": torch.zeros(num)}), FileSpec("b", last)])
        assert parse(image.buffer)["y"].tolist() == [0, 1, 2, 3, 4]


def test_an_arena_grown_by_another_is_noticed():
    arena = Arena()
    stager = Stager(arena)
    stage(stager, {"x": torch.zeros(3)})
    arena.reserve(2**20)
    assert parse(stage(stager, {"x": torch.ones(3)}).buffer)["x"].tolist() == [1, 1, 1]


def test_changed_metadata_is_written():
    stager = Stager(Arena())
    for step in ("1", "2"):
        image = stage(stager, {"x": torch.zeros(1)}, metadata={"step": step})
        assert f'"step":"{step}"'.encode() in bytes(image.buffer)


def test_waiting_brings_a_plain_image_into_c_order_once_and_on_any_thread():
    weight = torch.randn(4, 3, 2, 2).to(memory_format=torch.channels_last)
    image = stage(Stager(Arena()), {"w": weight}, plain=True)
    for _ in range(2):
        thread = threading.Thread(target=image.wait)
        thread.start()
        thread.join()
    assert torch.equal(parse(image.buffer)["w"], weight)


def test_staging_records_no_graph_and_draws_no_random_numbers():
    weight = torch.randn(3, requires_grad=True)
    torch_state, python_state = torch.get_rng_state(), random.getstate()
    image = stage(Stager(Arena()), {"w": weight * 2})
    image.wait()
    assert not parse(image.buffer)["w"].requires_grad
    assert torch.equal(torch.get_rng_state(), torch_state)
    assert random.getstate() == python_state


def test_staging_works_inside_and_outside_of_inference_mode():
    stager = Stager(Arena())
    with torch.inference_mode():
        restored = parse(stage(stager, {"x": torch.ones(3)}).buffer)["x"]
    assert restored.requires_grad_().is_leaf
    assert parse(stage(stager, {"x": torch.zeros(3)}).buffer)["x"].tolist() == [0, 0, 0]


def test_live_tensors_are_copied_by_one_call_for_each_type(monkeypatch):
    calls = []
    copy_all = torch._foreach_copy_
    monkeypatch.setattr(torch, "_foreach_copy_", lambda to, of, **k: calls.append(len(of)) or copy_all(to, of, **k))
    state = {f"f{i}": torch.zeros(2) for i in range(10)} | {
        f"i{i}": torch.zeros(2, dtype=torch.int32) for i in range(5)
    }
    stage(Stager(Arena()), state | {"empty": torch.zeros(0)})
    assert sorted(calls) == [5, 10]


def interleaved_files():
    """Types of one item size in turn, a file in plain order, one of a few bytes."""
    types = (torch.float32, torch.int32, torch.bfloat16)
    tensors = {f"t{i}": torch.arange(i, i + 300).to(types[i % 3]) for i in range(30)}
    weights = {"w": torch.randn(4, 3, 2, 2).to(memory_format=torch.channels_last), "v": torch.randn(500)}
    return [FileSpec("a", weights, plain=True), FileSpec("b", tensors), FileSpec("c", {"x": torch.ones(2)})]


def test_what_is_said_to_be_staged_is_so_while_the_rest_is_copied(monkeypatch):
    monkeypatch.setattr("resume_core.image.stage._PIECE_BYTES", 2000)
    arena, said = Arena(), []
    advance = Progress.advance

    def noting(self, num_bytes):
        said.append(bytes(arena.view(0, num_bytes)))
        advance(self, num_bytes)

    monkeypatch.setattr(Progress, "advance", noting)
    Stager(arena).stage(interleaved_files())
    assert len(said) > 10
    assert [len(before) for before in said] == sorted(len(before) for before in said)
    assert all(before == bytes(arena.view(0, len(before))) for before in said)


LARGE = {
    "contiguous": torch.randn(40, 50),
    "one dimension": torch.randn(1999),
    "transposed": torch.randn(40, 50).t(),
    "channels last": torch.randn(8, 5, 6, 7).to(memory_format=torch.channels_last),
    "a dimension of one": torch.randn(1, 1700).t(),
    "rows over the limit": torch.randn(3, 600),
    "bfloat16": torch.randn(999, 3).bfloat16(),
    "every second": torch.randn(2000, 2)[:, 0],
    "conjugate": torch.randn(700, dtype=torch.complex64).conj(),
    "parameter": torch.nn.Parameter(torch.randn(30, 50)),
}


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("name", LARGE)
def test_a_large_tensor_is_copied_in_slices_that_lie_one_behind_the_other(monkeypatch, name, plain):
    tree = {"small": torch.randn(3), "large": LARGE[name], "after": torch.randn(5)}
    image = stage(Stager(Arena()), tree, plain=plain)
    image.wait()
    whole = bytes(image.buffer)
    monkeypatch.setattr("resume_core.image.stage._PIECE_BYTES", 2000)
    said, advance = [], Progress.advance
    monkeypatch.setattr(Progress, "advance", lambda self, num: (said.append(num), advance(self, num)))
    stager = Stager(Arena())
    for _ in range(2):
        image = stage(stager, tree, plain=plain)
        image.wait()
        assert bytes(image.buffer) == whole
    assert len(said) >= 2 * (LARGE[name].nbytes // 2400)
    assert said == sorted(said[: len(said) // 2]) * 2


def test_a_thread_reads_the_beginning_while_the_end_is_copied(monkeypatch):
    monkeypatch.setattr("resume_core.image.stage._PIECE_BYTES", 4000)
    copy, go_on, began, read = torch._foreach_copy_, threading.Event(), threading.Event(), []

    def one_at_a_time(targets, sources):
        if began.is_set():
            assert go_on.wait(60)
        began.set()
        copy(targets, sources)

    def reader(image):
        image.wait(image.size_bytes - 4000)
        read.append(image.buffer[image.size_bytes - 4000 - 1])
        go_on.set()
        image.wait()
        read.append(image.buffer[-1])

    monkeypatch.setattr("resume_core.image.stage.has_spare_core", lambda: True)
    threads = []

    def begun(images):
        threads.append(threading.Thread(target=reader, args=(images[0],)))
        threads[0].start()

    monkeypatch.setattr(torch, "_foreach_copy_", one_at_a_time)
    state = {"a": torch.full((4000,), 1, dtype=torch.uint8), "b": torch.full((4000,), 2, dtype=torch.uint8)}
    Stager(Arena()).stage([FileSpec("f", state)], begun)
    threads[0].join(60)
    assert read == [1, 2]


def test_an_error_in_the_middle_reaches_those_who_wait_for_the_rest(monkeypatch):
    monkeypatch.setattr("resume_core.image.stage._PIECE_BYTES", 4000)
    images, copy = [], torch._foreach_copy_

    def breaking(targets, sources):
        if sources[0][0] == 2:
            raise KeyboardInterrupt
        copy(targets, sources)

    monkeypatch.setattr(torch, "_foreach_copy_", breaking)
    state = {"a": torch.full((4000,), 1, dtype=torch.uint8), "b": torch.full((4000,), 2, dtype=torch.uint8)}
    monkeypatch.setattr("resume_core.image.stage.has_spare_core", lambda: True)
    with pytest.raises(KeyboardInterrupt):
        Stager(Arena()).stage([FileSpec("f", state)], images.extend)
    images[0].wait(images[0].size_bytes - 4000)
    with pytest.raises(RuntimeError, match="broken off: KeyboardInterrupt"):
        images[0].wait()


@pytest.mark.parametrize(("spare", "first"), [(True, "begun"), (False, "copied")])
def test_writes_begin_beside_the_copy_where_a_core_is_left_to_them(monkeypatch, spare, first):
    seen, copy = [], torch._foreach_copy_
    monkeypatch.setattr("resume_core.image.stage.has_spare_core", lambda: spare)
    monkeypatch.setattr(torch, "_foreach_copy_", lambda *args: (seen.append("copied"), copy(*args)))
    Stager(Arena()).stage([FileSpec("f", {"a": torch.ones(4)})], lambda images: seen.append("begun"))
    assert sorted(seen) == ["begun", "copied"]
    assert seen[0] == first


def test_a_core_is_spare_where_torch_leaves_one():
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        assert has_spare_core() == (len(os.sched_getaffinity(0)) > 1)
        torch.set_num_threads(len(os.sched_getaffinity(0)))
        assert not has_spare_core()
    finally:
        torch.set_num_threads(before)


def test_a_copy_that_breaks_off_begins_no_writes_where_they_would_come_behind_it(monkeypatch):
    images = []
    monkeypatch.setattr("resume_core.image.stage.has_spare_core", lambda: False)
    monkeypatch.setattr(torch, "_foreach_copy_", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        Stager(Arena()).stage([FileSpec("f", {"a": torch.ones(4)})], images.extend)
    assert not images


def test_two_files_of_one_name_are_refused():
    with pytest.raises(ValueError, match="one name"):
        Stager(Arena()).stage([FileSpec("a", {}), FileSpec("a", {})])
