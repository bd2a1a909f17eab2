"""Staging off a GPU: the host goes on, and the image is what the tensors were at the call."""

import gc

import pytest
import torch
from parsing import parse

from resume_core.image import Arena, FileSpec, Stager, flatten, unflatten


def big_state(scale=1.0, num=8, side=2048):
    return {f"w{i}": torch.full((side, side), scale * (i + 1), device="cuda") for i in range(num)}


def values(image):
    image.wait()
    return {name: tensor.clone() for name, tensor in parse(image.buffer).items()}


def stage(stager, tree, **options):
    (image,) = stager.stage([FileSpec("a.safetensors", flatten(tree).tensors, **options)])
    return image


def test_what_training_enqueues_after_the_call_does_not_reach_the_image():
    stager = Stager(Arena())
    for scale in (1.0, 2.0, 3.0):
        state = big_state(scale)
        image = stage(stager, state)
        for tensor in state.values():
            tensor.zero_()
        found = values(image)
        assert all((found[f"w{i}"] == scale * (i + 1)).all() for i in range(8))


def test_memory_that_is_freed_and_given_out_again_after_the_call_does_not_reach_the_image():
    stager = Stager(Arena())
    state = big_state()
    image = stage(stager, state)
    del state
    others = big_state(-1.0)
    found = values(image)
    assert all((found[f"w{i}"] == i + 1).all() for i in range(8))
    assert others["w0"][0, 0] == -1


def test_work_that_is_under_way_at_the_call_is_in_the_image():
    state = big_state()
    factor = torch.eye(2048, device="cuda") * 2
    for _ in range(20):  # some tens of milliseconds of work that the host does not wait for
        state["w0"] = state["w0"] @ factor
    image = stage(Stager(Arena()), state)
    assert (values(image)["w0"] == 2.0**20).all()


def test_the_memory_is_registered_with_the_driver():
    torch.zeros(1, device="cuda")
    arena = Arena()
    arena.reserve(1 << 20)
    arena.wait()
    assert arena.is_pinned
    assert arena.tensor.is_pinned()


def test_memory_that_was_filled_before_cuda_was_in_use_is_registered_at_the_first_stage(monkeypatch):
    arena = Arena()
    monkeypatch.setattr("resume_core.image.arena.is_in_use", lambda: False)
    arena.reserve(1 << 24)
    arena.wait()
    assert not arena.is_pinned
    image = stage(Stager(arena), {"x": torch.ones(1000, device="cuda")})
    assert arena.is_pinned
    assert (values(image)["x"] == 1).all()


def test_memory_that_grows_or_is_dropped_is_given_back():
    for num in (1, 2, 4, 8):
        stager = Stager(Arena())
        for scale in (1, 2, 4):
            image = stage(stager, big_state(scale, num=num * scale, side=512))
            assert (values(image)["w0"] == scale).all()
        assert stager._arena.is_pinned
        del stager, image
        gc.collect()
    torch.cuda.synchronize()  # would raise what an earlier call left behind


def test_growing_waits_for_copies_into_the_memory_that_is_given_back():
    stager = Stager(Arena())
    image = stage(stager, big_state())
    stager.reserve(1 << 30)  # while the copies may be under way
    stager._arena.wait()
    assert (values(image)["w7"] == 8).all()


def test_refused_registration_costs_speed_alone(monkeypatch):
    class Refusing:
        @staticmethod
        def cudaHostRegister(*args):
            return 1

    monkeypatch.setattr("resume_core.image.cuda._runtime", Refusing)
    stager = Stager(Arena())
    state = big_state()
    image = stage(stager, state)
    state["w0"].zero_()
    assert not stager._arena.is_pinned
    assert (values(image)["w0"] == 1).all()


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.bool, torch.complex64], ids=str
)
def test_every_type_layout_and_device_comes_back(dtype):
    base = torch.arange(720, device="cuda").reshape(2, 3, 10, 12).to(dtype)
    tree = {
        "plain": base,
        "channels_last": base.contiguous(memory_format=torch.channels_last),
        "transposed": base[0, 0].t(),
        "strided": base[0, :, ::2, ::3],
        "expanded": base[0, 0, 0].expand(4, 12),
        "scalar": base[1, 1, 1, 1],
        "empty": base[:0],
        "host": base.cpu(),
        "tied": base,
    }
    flat = flatten(tree)
    (image,) = Stager(Arena()).stage([FileSpec("a.safetensors", flat.tensors)])
    image.wait()
    found = unflatten(flat.structure, parse(image.buffer))
    for name, tensor in tree.items():
        assert torch.equal(found[name], tensor.cpu()), name
    assert found["channels_last"].stride() == tree["channels_last"].stride()


def test_a_plain_file_is_in_c_order():
    weight = torch.randn(4, 3, 5, 5, device="cuda").to(memory_format=torch.channels_last)
    image = stage(Stager(Arena()), {"w": weight}, plain=True)
    assert torch.equal(values(image)["w"], weight.cpu())


def test_a_side_stream_of_the_user_is_seen_when_training_waits_for_it():
    stager, side = Stager(Arena()), torch.cuda.Stream()
    tensor = torch.zeros(1 << 24, device="cuda")
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(50):
            tensor += 1
    torch.cuda.current_stream().wait_stream(side)
    image = stage(stager, {"x": tensor})
    tensor.zero_()
    assert (values(image)["x"] == 50).all()
