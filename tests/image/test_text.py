import contextlib
import gc
import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from resume_core.collector import collector_paused
from resume_core.errors import CorruptCheckpointError
from resume_core.image import dumps, loads
from resume_core.image.quiet import plain_tensors
from tests.image.helpers import assert_same

json_trees = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda children: st.lists(children, max_size=4) | st.dictionaries(st.text(max_size=4), children, max_size=4),
)


@settings(max_examples=200, deadline=None)
@given(json_trees)
def test_json_comes_back_equal_and_in_order(tree):
    assert_same(tree, loads(dumps(tree)))


@settings(max_examples=200, deadline=None)
@given(json_trees)
def test_the_text_is_ascii_that_any_reader_of_json_takes(tree):
    text = dumps(tree)
    assert text.isascii()
    assert json.loads(text) == tree


def test_a_key_that_occurs_twice_is_named_as_the_reason():
    with pytest.raises(CorruptCheckpointError, match="twice"):
        loads(b'[{"a": 1, "b": 2, "a": 3}]')


def test_a_number_that_overflows_is_named_as_the_reason():
    with pytest.raises(CorruptCheckpointError, match="1e400 is not a finite number"):
        loads(b"[1e400]")


def test_text_in_another_encoding_is_refused():
    with pytest.raises(CorruptCheckpointError):
        loads('{"a": 1}'.encode("utf-16"))


def test_the_error_says_where_when_no_file_is_known():
    with pytest.raises(CorruptCheckpointError, match="structure is not the JSON") as caught:
        loads(b"")
    assert caught.value.path == ""


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_is_afterwards_as_it_was_before(enabled):
    before = gc.isenabled()
    try:
        (gc.enable if enabled else gc.disable)()
        with contextlib.suppress(KeyError), collector_paused():
            assert not gc.isenabled()
            raise KeyError
        assert gc.isenabled() is enabled
    finally:
        (gc.enable if before else gc.disable)()


def test_plain_tensors_are_no_inference_tensors_and_modes_come_back():
    with torch.inference_mode():
        with plain_tensors():
            made = torch.zeros(2)
            assert not torch.is_grad_enabled()
        assert torch.is_inference_mode_enabled()
    assert not made.is_inference()
    assert torch.is_grad_enabled()
