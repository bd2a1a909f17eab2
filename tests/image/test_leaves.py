import datetime as dt

import numpy as np
import pytest
import torch

from resume_core.image import flatten
from resume_core.image.leaves import DECODERS, LEAVES, encode_float, numpy_dtype, qualified_name, user_leaf


@pytest.mark.parametrize(
    ("value", "node"),
    [
        ((1, 2), {"$": "tuple", "items": [1, 2]}),
        ({3, 1, 2}, {"$": "set", "items": [1, 2, 3]}),
        ({1: "a"}, {"$": "dict", "items": [[1, "a"]]}),
        ({"$": 1}, {"$": "dict", "items": [["$", 1]]}),
        (float("inf"), {"$": "float", "value": "inf"}),
        (float("-inf"), {"$": "float", "value": "-inf"}),
        (float("nan"), {"$": "float", "value": "nan"}),
        (2**2000, {"$": "int", "hex": hex(2**2000)}),
        (b"\0", {"$": "bytes", "base64": "AA=="}),
        (1 - 2j, {"$": "complex", "real": 1.0, "imag": -2.0}),
        (torch.bfloat16, {"$": "torch.dtype", "value": "bfloat16"}),
        (torch.device("cuda:1"), {"$": "torch.device", "value": "cuda:1"}),
        (torch.Size([2]), {"$": "torch.Size", "value": [2]}),
        (dt.date(2024, 1, 2), {"$": "date", "value": [2024, 1, 2]}),
        (dt.timedelta(1, 2, 3), {"$": "timedelta", "value": [1, 2, 3]}),
        (np.float32(1), {"$": "numpy.generic", "dtype": "<f4", "base64": "AACAPw=="}),
    ],
    ids=repr,
)
def test_the_form_of_a_kind_in_the_file_stays_as_it_is(value, node):
    assert flatten(value).structure == node


def test_a_tensor_node_names_only_what_is_not_the_rule():
    tensor = torch.zeros(2, 3)
    tree = {"a": tensor, "b": tensor.clone().t(), "c": tensor, "d": torch.nn.Parameter(torch.zeros(()))}
    assert flatten(tree).structure == {
        "a": {"$": "tensor", "name": "a", "dtype": "float32", "shape": [2, 3]},
        "b": {"$": "tensor", "name": "b", "dtype": "float32", "shape": [3, 2], "stride": [1, 3]},
        "c": {"$": "tensor", "alias": "a"},
        "d": {"$": "parameter", "name": "d", "dtype": "float32", "shape": [], "requires_grad": True},
    }


def test_a_set_of_text_has_the_same_form_in_every_process():
    words = {"pear", "apple", "fig"}
    assert flatten(words).structure["items"] == ["apple", "fig", "pear"]


def test_every_kind_has_a_decoder():
    assert {leaf.kind for leaf in LEAVES.values()} <= DECODERS.keys()


def test_finite_floats_are_plain():
    assert encode_float(-0.0) == 0.0
    assert str(encode_float(-0.0)) == "-0.0"


@pytest.mark.parametrize("text", ["|O", "O", "f4", "<f4,<i4", "|V8", "datetime64", "nonsense", "<c99"])
def test_numpy_types_that_are_not_plain_are_refused(text):
    with pytest.raises((ValueError, TypeError)):
        numpy_dtype(text)


def test_an_array_read_only_or_backwards_is_copied_and_any_other_shared():
    shared, frozen = np.arange(3), np.arange(3)
    frozen.flags.writeable = False
    tensors = flatten({"shared": shared, "frozen": frozen, "back": shared[::-1]}).tensors
    shared[0] = frozen.sum() + 7
    assert tensors["shared"].tolist() == [10, 1, 2]
    assert tensors["frozen"].tolist() == [0, 1, 2]
    assert tensors["back"].tolist() == [2, 1, 0]


def test_names_of_classes_are_qualified():
    assert qualified_name(dt.datetime) == "datetime.datetime"
    assert user_leaf("nobody.registered.this") is None
