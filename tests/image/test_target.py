"""Files read into live tensors, and into fresh ones where those do not lie as the file has them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from resume_core.image import live_targets, loads, make_target, parse_header, unflatten
from tests.image.helpers import bits, staged

DTYPES = [
    torch.float32,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.complex64,
    torch.complex128,
    torch.int64,
    torch.bool,
]


def read(saved, live, *, plain=False):
    """What is restored of ``saved``, and the names of ``live`` that were read into."""
    text, file = staged(saved, plain=plain)
    header, structure = parse_header(file), loads(text)
    found = live_targets(header, structure, live, plain=plain)
    target = make_target(header, found)
    start = min(entry.offset for entry in header.stored.values())
    for view in target.memory:
        view[:] = file[start : start + view.nbytes]
        start += view.nbytes
    assert start == len(file)
    return unflatten(structure, target.tensors, plain=plain), set(found)


def like(tensor):
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)


def transposed():
    return torch.arange(12.0).view(3, 4).t()


def channels_last():
    return torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (3,), (2, 3, 4)])
def test_a_live_tensor_that_lies_as_the_saved_one_is_read_into(plain, dtype, shape):
    saved = torch.randint(0, 2, (*shape, 16), dtype=torch.uint8)[..., : dtype.itemsize].contiguous()
    saved = saved.view(dtype).view(shape)
    live = torch.nn.Parameter(like(saved), requires_grad=False) if len(shape) == 3 else like(saved)
    restored, found = read({"w": saved, "empty": torch.empty(0, 3)}, {"w": live}, plain=plain)
    assert found == {"w"}
    assert bits(live) == bits(saved)
    assert restored["w"].data_ptr() == live.data_ptr()
    assert (restored["w"].dtype, restored["w"].shape) == (saved.dtype, saved.shape)
    assert restored["empty"].shape == (0, 3)


@pytest.mark.parametrize("make", [transposed, channels_last])
def test_any_order_of_dimensions_is_read_into_but_in_a_plain_file_only_that_of_c(make):
    saved = make()
    for plain in (False, True):
        live = like(saved).zero_()
        restored, found = read({"w": saved}, {"w": live}, plain=plain)
        assert found == (set() if plain else {"w"})
        assert torch.equal(restored["w"], saved)
        assert restored["w"].stride() == saved.stride()
        assert torch.equal(live, torch.zeros_like(live) if plain else saved)


def gap():
    return torch.zeros(3, 8)[:, ::2]


@pytest.mark.parametrize(
    ("saved", "live"),
    [
        (torch.ones(3, 4), torch.zeros(4, 3)),
        (torch.ones(3, 4), torch.zeros(12)),
        (torch.ones(3), torch.zeros(3, dtype=torch.int32)),
        (torch.ones(3, dtype=torch.float16), torch.zeros(3, dtype=torch.bfloat16)),
        (torch.ones(3), torch.zeros(1).expand(3)),
        (torch.ones(3, 4), gap()),
        (torch.arange(9.0).view(3, 3).t(), torch.zeros(3, 3)),  # the header of both has the shape [3, 3]
        (torch.arange(9.0).view(3, 3), torch.zeros(3, 3).t()),
        (torch.ones(2, dtype=torch.complex64), torch.zeros(2, dtype=torch.complex64).conj()),
        (torch.ones(3), torch.zeros(3, device="meta")),
        (torch.ones(3), torch.zeros(3).to_sparse()),
        (torch.ones(3), torch.nn.UninitializedParameter()),
        (torch.ones(3), torch.zeros(3).as_subclass(type("Mine", (torch.Tensor,), {}))),
    ],
)
@pytest.mark.parametrize("plain", [False, True])
def test_what_does_not_lie_as_the_saved_one_is_left_alone(saved, live, plain):
    restored, found = read({"w": saved}, {"w": live}, plain=plain)
    assert found == set()
    assert torch.equal(restored["w"], saved)


def test_a_name_that_the_file_has_not_is_left_alone():
    live = torch.zeros(3)
    assert read({"w": torch.ones(3)}, {"v": live})[1] == set()
    assert live.tolist() == [0, 0, 0]


def test_tied_weights_are_read_once_into_the_place_of_both():
    saved, live = torch.ones(3), torch.zeros(3)
    restored, found = read({"a": saved, "b": saved}, {"a": live, "b": live.detach()})
    assert found == {"a"}
    assert live.tolist() == [1, 1, 1]
    assert restored["a"].data_ptr() == restored["b"].data_ptr() == live.data_ptr()


@pytest.mark.parametrize("second", [slice(0, 3), slice(1, 4), slice(0, 2)])
def test_live_tensors_that_share_memory_are_not_read_into_as_two(second):
    memory = torch.zeros(4)
    live = {"a": memory[:3], "b": memory[second], "c": torch.zeros(2)}
    saved = {"a": torch.ones(3), "b": torch.full_like(live["b"], 2), "c": torch.full((2,), 3.0)}
    restored, found = read(saved, live)
    assert found == {"c"}
    assert memory.tolist() == [0] * 4
    assert all(torch.equal(restored[name], saved[name]) for name in saved)


def test_memory_that_another_live_tensor_has_a_part_of_is_not_read_into():
    memory = torch.zeros(4)
    assert read({"a": torch.ones(3)}, {"a": memory[:3], "elsewhere": memory[2:]})[1] == set()


def test_fresh_tensors_have_memory_of_their_own_and_can_be_trained():
    with torch.inference_mode():
        restored, _ = read({"a": torch.ones(3), "b": torch.arange(5, dtype=torch.uint8), "c": torch.tensor(2.5)}, {})
    assert {name: t.untyped_storage().nbytes() for name, t in restored.items()} == {"a": 12, "b": 5, "c": 4}
    assert not restored["a"].is_inference()
    restored["a"].requires_grad_().sum().backward()


def test_fresh_memory_is_not_filled_in_deterministic_mode_and_the_setting_stays(monkeypatch):
    header = parse_header(staged({"w": torch.ones(1 << 20)})[1])
    seen, empty = [], torch.empty

    def noting(*args, **kwargs):
        seen.append(torch.utils.deterministic.fill_uninitialized_memory)
        return empty(*args, **kwargs)

    monkeypatch.setattr(torch, "empty", noting)
    make_target(header)
    assert seen == [False]
    assert torch.utils.deterministic.fill_uninitialized_memory


def test_threads_that_allocate_at_once_leave_the_setting_as_it_was():
    header = parse_header(staged({"w": torch.ones(4)})[1])
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: make_target(header), range(400)))
    assert torch.utils.deterministic.fill_uninitialized_memory
