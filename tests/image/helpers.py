"""What the tests of images share: a save and a restore in memory, and a comparison down to the last bit."""

import math
from collections import defaultdict

import numpy as np
import torch
from parsing import parse

from resume_core.image import Arena, FileSpec, Stager, dumps, flatten, loads, unflatten


def staged(tree, *, plain=False):
    """Structure as text, and the bytes of the file."""
    flat = flatten(tree)
    (image,) = Stager(Arena()).stage([FileSpec("training.safetensors", flat.tensors, plain, flat.aliases)])
    image.wait()
    return dumps(flat.structure), bytearray(image.buffer)


def round_trip(tree, *, plain=False):
    text, file = staged(tree, plain=plain)
    return unflatten(loads(text), parse(file), plain=plain)


def bits(tensor):
    """The bytes of a tensor in C order."""
    return tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8).tolist()


def assert_same_tensor(a, b):
    assert type(a) is type(b)
    assert (a.dtype, a.shape, a.requires_grad) == (b.dtype, b.shape, b.requires_grad)
    assert bits(a) == bits(b)
    assert a.stride() == b.stride()


def assert_same_array(a, b):
    assert (a.dtype, a.shape) == (b.dtype, b.shape)
    assert np.ascontiguousarray(a).tobytes() == np.ascontiguousarray(b).tobytes()


def assert_same(a, b, place="tree"):
    """Equal values of equal types, dicts in equal order, floats to the bit, tensors with equal strides."""
    assert type(a) is type(b), f"{place}: {type(a)} became {type(b)}"
    if isinstance(a, torch.Tensor):
        assert_same_tensor(a, b)
    elif isinstance(a, np.ndarray):
        assert_same_array(a, b)
    elif isinstance(a, float):
        assert a.hex() == b.hex(), place
    elif isinstance(a, complex):
        assert_same([a.real, a.imag], [b.real, b.imag], place)
    elif isinstance(a, dict):
        assert_same(list(a.items()), list(b.items()), place)
        if isinstance(a, defaultdict):
            assert a.default_factory is b.default_factory
    elif isinstance(a, list | tuple) and type(a) is not torch.Size:
        assert len(a) == len(b), place
        for index, (x, y) in enumerate(zip(a, b, strict=True)):
            assert_same(x, y, f"{place}.{index}")
    elif isinstance(a, np.generic):
        assert a.dtype == b.dtype
        assert a.tobytes() == b.tobytes(), place
    else:
        assert a == b, place


def is_nan(value):
    return type(value) is float and math.isnan(value)
