"""Random states for the property tests."""

import datetime as dt
import math
import pathlib
from collections import Counter, OrderedDict, defaultdict

import numpy as np
import torch
from hypothesis import strategies as st

from resume_core.image.dtypes import BY_DTYPE

DTYPES = sorted((d for d in BY_DTYPE if d is not torch.complex32), key=str)

floats = st.floats(allow_nan=False) | st.just(-0.0)
texts = st.text(max_size=6) | st.text(st.characters(categories=["Cs", "Lu"]), max_size=4)
dates = st.datetimes(timezones=st.just(dt.timezone.utc) | st.none())
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(min_value=10**400, max_value=10**401),
    floats,
    texts,
    st.binary(max_size=5),
    st.builds(complex, floats, floats),
    dates,
    dates.map(dt.datetime.date),
    dates.map(dt.datetime.timetz),
    st.timedeltas(),
    st.sampled_from([torch.float32, torch.bfloat16, torch.device("cuda", 1), torch.Size([2, 3]), torch.Size([])]),
    st.sampled_from([pathlib.Path("a/b"), pathlib.PureWindowsPath("c:/d"), pathlib.PurePosixPath("/e")]),
    st.builds(np.float32, st.floats(width=32, allow_nan=False)),
    st.builds(np.int16, st.integers(-9, 9)),
    st.sampled_from([np.str_("a\0"), np.bytes_(b"b"), np.bool_(True), np.datetime64("2020-01-01"), np.uint64(2**63)]),
)
keys = st.one_of(st.none(), st.booleans(), st.integers(-9, 9), texts, st.just("$"), st.tuples(st.integers(0, 3), texts))


@st.composite
def tensors(draw):
    """Any type, any order of dimensions, 0 to 4 of them, sizes 0 to 3, random bits."""
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(st.lists(st.integers(0, 3), max_size=4))
    num_bytes = math.prod(shape) * dtype.itemsize
    limit = 1 if dtype is torch.bool else 255
    raw = draw(st.lists(st.integers(0, limit), min_size=num_bytes, max_size=num_bytes))
    tensor = torch.tensor(raw, dtype=torch.uint8).view(dtype).view(shape)
    tensor = tensor.permute(draw(st.permutations(range(len(shape)))))
    if dtype.is_floating_point and draw(st.booleans()):
        return draw(st.sampled_from([torch.nn.Parameter(tensor), torch.nn.Parameter(tensor, requires_grad=False)]))
    return tensor


@st.composite
def arrays(draw):
    dtype = draw(st.sampled_from(["f4", ">f8", "i8", "u2", "?", "c16", "M8[s]", "S3"]))
    array = np.zeros(draw(st.lists(st.integers(0, 3), max_size=3)), dtype)
    return array.T if draw(st.booleans()) else array


def counters(children):
    return st.dictionaries(keys, st.integers(), max_size=3).map(Counter)


def containers(children):
    pairs = st.dictionaries(keys, children, max_size=3)
    return st.one_of(
        st.lists(children, max_size=3),
        st.lists(children, max_size=3).map(tuple),
        st.dictionaries(texts, children, max_size=3),
        pairs,
        pairs.map(OrderedDict),
        pairs.map(lambda items: defaultdict(list, items)),
        counters(children),
        st.sets(keys, max_size=3),
        st.frozensets(keys, max_size=3),
    )


states = st.recursive(scalars | tensors() | arrays(), containers, max_leaves=12)
