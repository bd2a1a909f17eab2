"""Tensors that travel in somebody else's format."""

from __future__ import annotations

import pytest
import torch

from resume_core.image import dumps, flatten, loads, loose, unflatten

TENSORS = {
    "channels last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "with holes": torch.arange(10)[::2],
    "expanded": torch.arange(3.0).expand(2, 3),
    "conjugated": torch.randn(3, dtype=torch.complex128).conj(),
    "a scalar": torch.tensor(3.0),
    "nothing": torch.zeros(0, 3),
    "transposed halves": torch.randn(2, 3).to(torch.bfloat16).t(),
}


@pytest.mark.parametrize("name", TENSORS)
def test_a_tensor_comes_back_through_torch_save_without_pickle(tmp_path, name):
    flat = flatten({"value": TENSORS[name]})
    torch.save({"text": dumps(flat.structure).decode(), "tensors": loose(flat.tensors)}, tmp_path / "file")
    file = torch.load(tmp_path / "file", weights_only=True)
    found = unflatten(loads(file["text"].encode()), file["tensors"])["value"]
    assert torch.equal(found, TENSORS[name])
    assert (found.dtype, found.stride()) == (TENSORS[name].dtype, TENSORS[name].clone().stride())


def test_the_copies_are_ones_of_their_own():
    value = torch.zeros(2)
    (copy,) = loose(flatten([value]).tensors).values()
    value += 1
    assert copy.tolist() == [0, 0]
