import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from resume_core.image.dtypes import BY_CODE, BY_DTYPE, BY_NAME
from resume_core.image.views import (
    ViewNames,
    c_strides,
    dense_strides,
    file_shape,
    is_dense,
    physical_order,
    same_view,
    stored_strides,
)


@st.composite
def views(draw):
    """Tensors with permuted, skipped, narrowed and expanded dimensions."""
    shape = draw(st.lists(st.integers(0, 4), max_size=5))
    tensor = torch.zeros(shape, dtype=torch.int8).permute(draw(st.permutations(range(len(shape)))))
    for dim in range(len(shape)):
        how = draw(st.sampled_from(["keep", "keep", "skip", "narrow", "expand"]))
        if how == "skip":
            tensor = tensor[(slice(None),) * dim + (slice(None, None, 2),)]
        elif how != "keep" and tensor.shape[dim]:
            tensor = tensor.narrow(dim, 0, 1)
            num = draw(st.integers(1, 3)) if how == "expand" else 1
            tensor = tensor.expand(*tensor.shape[:dim], num, *tensor.shape[dim + 1 :])
    return tensor


@settings(max_examples=300, deadline=None)
@given(views())
def test_stored_strides_are_those_that_torch_gives_a_clone(tensor):
    if tensor.numel():
        assert stored_strides(tensor) == tensor.clone().stride()
    else:
        assert stored_strides(tensor) == tensor.stride()


@settings(max_examples=300, deadline=None)
@given(views())
def test_stored_strides_are_dense_and_stay_themselves(tensor):
    strides = stored_strides(tensor)
    assert not tensor.numel() or is_dense(tuple(tensor.shape), strides)
    assert dense_strides(tuple(tensor.shape), strides) == strides


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 4), max_size=5))
def test_c_strides_are_those_of_a_fresh_tensor(shape):
    assert c_strides(tuple(shape)) == torch.empty(shape).stride()


@settings(max_examples=100, deadline=None)
@given(views())
def test_elements_in_the_order_of_memory_are_a_c_order_tensor_of_the_permuted_shape(tensor):
    dense = tensor.clone()
    order = physical_order(dense.stride())
    assert dense.permute(order).is_contiguous()


def test_a_carrier_of_two_elements_adds_a_dimension_to_the_shape_in_the_file():
    pair = BY_DTYPE[torch.complex128]
    assert file_shape(pair, (3, 4), (1, 3), plain=True) == (3, 4, 2)
    assert file_shape(pair, (3, 4), (1, 3), plain=False) == (4, 3, 2)
    assert file_shape(BY_DTYPE[torch.float32], (), (), plain=False) == ()


@pytest.mark.parametrize(
    ("change", "same"),
    [
        (lambda t: t, True),
        (lambda t: t.detach(), True),
        (lambda t: t[:], True),
        (lambda t: t.view(4, 1, 4).squeeze(1), True),
        (lambda t: t.t(), False),
        (lambda t: t[:2], False),
        (lambda t: t.conj(), False),
        (lambda t: t.view(torch.int64), False),
        (lambda t: t.clone(), False),
    ],
)
def test_the_same_view_is_the_same_elements_in_the_same_shape(change, same):
    tensor = torch.zeros(4, 4, dtype=torch.complex64)
    assert same_view(tensor, change(tensor)) is same


def test_names_of_views_are_those_of_their_first():
    names, tensor = ViewNames(), torch.zeros(4)
    assert names.first_name("a", tensor) == "a"
    assert names.first_name("b", tensor.detach()) == "a"
    assert names.first_name("c", tensor[:2]) == "c"
    assert names.first_name("d", tensor[:2]) == "c"


def test_tensors_without_memory_are_never_one():
    names = ViewNames()
    assert [names.first_name(name, torch.empty(0)) for name in "ab"] == ["a", "b"]


def test_every_type_has_one_name_and_a_carrier_of_the_same_size():
    assert len(BY_NAME) == len(BY_DTYPE)
    for entry in BY_DTYPE.values():
        assert getattr(torch, entry.name) is entry.dtype
        assert entry.carrier.itemsize * entry.num_carriers == entry.dtype.itemsize
        assert BY_CODE[entry.code] is entry.carrier
