import contextlib
import json
import math
import struct

import pytest
import safetensors.torch
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from parsing import parse

from resume_core.errors import CorruptCheckpointError, UnsupportedStateError
from resume_core.image import loads, parse_header, unflatten
from tests.image.helpers import staged

FUZZ = settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def file_of(header, num_bytes=0):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return bytearray(struct.pack("<Q", len(text)) + text + bytes(num_bytes))


def entry(dtype="F32", shape=(2,), offsets=(0, 8)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


def test_a_file_of_safetensors_itself_is_read():
    tensors = {"a": torch.randn(3, 2), "b": torch.tensor(True), "c": torch.zeros(0, 4), "d": torch.ones(2).bfloat16()}
    found = parse(bytearray(safetensors.torch.save(tensors, {"k": "v"})))
    assert found.keys() == tensors.keys()
    assert all(torch.equal(found[name], tensors[name]) for name in tensors)


def test_the_header_alone_says_what_is_where():
    _, file = staged({"x": torch.zeros(3, dtype=torch.int16)})
    header = parse_header(file[:4096], size_bytes=len(file))
    assert header.stored["x"].offset == 4096
    assert header.stored["x"].nbytes == 6
    assert header.size_bytes == len(file)


@pytest.mark.parametrize(
    "file",
    [
        b"",
        b"\0" * 7,
        b"\0" * 8,
        struct.pack("<Q", 2**63),
        struct.pack("<Q", 3) + b"{}",
        file_of(b"[]"),
        file_of(b"{"),
        file_of(b"[" * 50_000),
        file_of(b'{"a":{},"a":{}}'),
        file_of({"__metadata__": {"a": 1}}),
        file_of({"__metadata__": []}),
        file_of({"a": 1}),
        file_of({"a": {}}),
        file_of({"a": entry() | {"extra": 1}}, 8),
        file_of({"a": entry("F33")}, 8),
        file_of({"a": entry(["F32"])}, 8),
        file_of({"a": entry(shape=[3])}, 8),
        file_of({"a": entry(shape=[-2])}, 8),
        file_of({"a": entry(shape=[2.0])}, 8),
        file_of({"a": entry(shape=[True, 2])}, 8),
        file_of({"a": entry() | {"shape": None}}, 8),
        file_of({"a": entry(shape=[1] * 65 + [2])}, 8),
        file_of({"a": entry(shape=[0, 2**40, 2**40], offsets=[0, 0])}),
        file_of({"a": entry(shape=[2**62], offsets=[0, 2**64])}),
        file_of({"a": entry(offsets=[0, 8, 9])}, 8),
        file_of({"a": entry(offsets=[8, 0])}, 8),
        file_of({"a": entry(offsets=[-8, 0])}, 8),
        file_of({"a": entry(offsets=[4, 12])}, 12),
        file_of({"a": entry()}, 7),
        file_of({"a": entry()}, 9),
        file_of({"a": entry(), "b": entry()}, 8),
        file_of({"a": entry(), "b": entry(offsets=[4, 12])}, 12),
        file_of({"a": entry(), "b": entry(offsets=[12, 20])}, 20),
    ],
)
def test_a_file_that_is_not_whole_is_a_corrupt_checkpoint_that_names_it(file):
    with pytest.raises(CorruptCheckpointError, match=r"rank-3\.safetensors") as caught:
        parse(file, path="rank-3.safetensors")
    assert caught.value.path == "rank-3.safetensors"


SAVED = staged(
    {
        "w": torch.randn(2, 3, 2, 2).to(memory_format=torch.channels_last),
        "p": torch.nn.Parameter(torch.zeros(2)),
        "mix": [(1, 2.5, math.inf), {1: b"x"}, torch.ones(2, dtype=torch.complex128), torch.arange(3).numpy()],
    }
)


def damaged(data, edits):
    """``data`` with bytes set, removed or put in, at places given as a share of its length."""
    data = bytearray(data)
    for share, byte, how in edits:
        at = int(share * max(len(data) - 1, 0))
        if how == "set" and data:
            data[at] = byte
        elif how == "insert":
            data.insert(at, byte)
        elif data:
            del data[at : at + 1 + byte % 8]
    return data


edits = st.lists(
    st.tuples(st.floats(0, 1), st.integers(0, 255), st.sampled_from(["set", "insert", "delete"])),
    min_size=1,
    max_size=4,
)


@FUZZ
@given(edits, st.booleans())
def test_damaged_bytes_of_a_file_give_tensors_or_a_corrupt_checkpoint(edits, plain):
    text, file = SAVED
    end = file.index(b" " * 64)  # mostly in the header, where the damage can be understood wrongly
    file = damaged(file[:end], edits) + file[end:]
    with contextlib.suppress(CorruptCheckpointError, UnsupportedStateError):
        unflatten(loads(text), parse(file), plain=plain)


@FUZZ
@given(edits)
def test_damaged_text_gives_a_tree_or_a_corrupt_checkpoint(edits):
    text, file = SAVED
    with contextlib.suppress(CorruptCheckpointError, UnsupportedStateError):
        unflatten(loads(bytes(damaged(text, edits))), parse(file))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=3),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=3), children, max_size=3),
    max_leaves=6,
)


def places(node, at=()):
    """Every place in a JSON value, as the keys that lead there."""
    children = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    return [at, *(place for key, child in children for place in places(child, (*at, key)))]


def replaced(node, place, value):
    if not place:
        return value
    copy = node.copy()
    copy[place[0]] = replaced(node[place[0]], place[1:], value)
    return copy


@FUZZ
@given(st.data(), json_values | st.sampled_from([2**62, -1, 2**70, [], {}, "w", "p", "float8_e4m3fn", [2**31] * 4]))
def test_a_value_put_anywhere_in_a_structure_gives_a_tree_or_a_corrupt_checkpoint(data, value):
    structure = loads(SAVED[0])
    structure = replaced(structure, data.draw(st.sampled_from(places(structure))), value)
    with contextlib.suppress(CorruptCheckpointError, UnsupportedStateError):
        unflatten(structure, parse(SAVED[1]), plain=data.draw(st.booleans()))


@FUZZ
@given(st.data(), json_values | st.sampled_from([2**62, -1, 2**70, [0, 0], {}, "F64", [2**31] * 4]))
def test_a_value_put_anywhere_in_a_header_gives_tensors_or_a_corrupt_checkpoint(data, value):
    header = json.loads(SAVED[1][8:4096])
    header = replaced(header, data.draw(st.sampled_from(places(header))), value)
    with contextlib.suppress(CorruptCheckpointError):
        parse(file_of(header) + SAVED[1][4096:])


@FUZZ
@given(st.binary(max_size=60))
@example(struct.pack("<Q", 2) + b"{}")
def test_any_bytes_give_tensors_or_a_corrupt_checkpoint(data):
    with contextlib.suppress(CorruptCheckpointError):
        parse(data)
