import json
import struct

import pytest
import safetensors.torch
import torch

from resume_core.errors import UnsupportedStateError
from resume_core.image import Layout, flatten
from tests.image.helpers import staged


def described(layout):
    (size,) = struct.unpack("<Q", layout.header[:8])
    assert size == len(layout.header) - 8
    return json.loads(layout.header[8:])


def test_the_header_fills_whole_pages_and_the_data_follows_without_holes():
    tensors = {
        f"t{i}": torch.zeros(i, dtype=dtype) for i, dtype in enumerate([torch.int8, torch.float64, torch.half] * 9)
    }
    layout = Layout.plan(tensors)
    assert len(layout.header) % 4096 == 0
    end = len(layout.header)
    for entry in layout.entries.values():
        assert entry.offset == end
        assert entry.offset % entry.dtype.itemsize == 0
        end += entry.nbytes
    assert layout.size_bytes == end


def test_tensors_lie_by_item_size_then_as_given():
    tensors = {
        "b": torch.zeros(1, dtype=torch.uint8),
        "z": torch.zeros(1),
        "a": torch.zeros(1),
        "c": torch.zeros(1, dtype=torch.complex128),
    }
    assert list(Layout.plan(tensors).entries) == ["c", "z", "a", "b"]


def test_tensors_of_whole_cache_lines_start_on_one_whatever_lies_beside_them():
    tensors = {"step": torch.zeros(1, dtype=torch.int64)}
    for i, num in enumerate([16, 5, 64, 32, 1]):
        tensors |= {f"f{i}": torch.zeros(num), f"b{i}": torch.zeros(num * 4, dtype=torch.int8)}
    entries = Layout.plan(tensors).entries.values()
    assert sum(entry.nbytes % 64 == 0 for entry in entries) >= 6
    assert all(entry.offset % 64 == 0 for entry in entries if entry.nbytes % 64 == 0)


def test_a_plain_header_has_logical_shapes_and_the_other_has_them_as_they_lie():
    image = torch.zeros(2, 3, 4, 5).to(memory_format=torch.channels_last)
    assert described(Layout.plan({"w": image}, plain=True))["w"]["shape"] == [2, 3, 4, 5]
    assert described(Layout.plan({"w": image}))["w"]["shape"] == [2, 4, 5, 3]


def test_types_that_the_format_lacks_travel_in_a_carrier():
    layout = Layout.plan({"c": torch.zeros(3, dtype=torch.complex128)}, plain=True)
    assert described(layout)["c"] == {"dtype": "F64", "shape": [3, 2], "data_offsets": [0, 48]}


def test_tied_names_are_dropped_and_recorded_as_metadata():
    weight = torch.zeros(3)
    layout = Layout.plan({"a": weight, "b": weight, "c": weight[:2]}, metadata={"format": "pt"}, plain=True)
    assert list(layout.entries) == ["a", "c"]
    assert layout.aliases == {"b": "a"}
    assert described(layout)["__metadata__"] == {"b": "a", "format": "pt"}


def test_a_plan_matches_new_tensors_of_the_same_kind():
    make = lambda: {"a": torch.randn(2, 3), "b": torch.randn(3, 2).t()}  # noqa: E731
    layout = Layout.plan(make())
    assert layout.matches(make())


@pytest.mark.parametrize(
    "changed",
    [
        {"a": torch.zeros(2, 3)},
        {"b": torch.zeros(2, 3), "a": torch.zeros(2, 3)},
        {"a": torch.zeros(2, 3), "b": torch.zeros(3, 2)},
        {"a": torch.zeros(2, 3), "b": torch.zeros(3, 2).t()},
        {"a": torch.zeros(2, 3), "b": torch.zeros(2, 3, dtype=torch.half)},
        dict.fromkeys(["a", "b"], torch.zeros(2, 3)),
    ],
    ids=["fewer", "order", "shape", "strides", "type", "tied"],
)
def test_a_plan_does_not_match_another_structure(changed):
    layout = Layout.plan({"a": torch.zeros(2, 3), "b": torch.zeros(2, 3)})
    assert not layout.matches(changed)


def test_a_plan_without_tensors_is_a_file(tmp_path):
    (tmp_path / "empty.safetensors").write_bytes(Layout.plan({}).header)
    assert safetensors.torch.load_file(tmp_path / "empty.safetensors") == {}


def test_a_type_without_a_place_in_a_file_is_refused_by_name():
    with pytest.raises(UnsupportedStateError, match="'odd'"):
        Layout.plan({"odd": torch.empty(1, dtype=torch.bits8)})


class Tied(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(5, 4)
        self.conv = torch.nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
        self.norm = torch.nn.BatchNorm2d(4)
        self.head = torch.nn.Linear(4, 5)
        self.head.weight = self.embed.weight


def test_a_plain_file_of_a_tied_model_loads_with_safetensors_alone(tmp_path):
    torch.manual_seed(0)
    saved, fresh = Tied(), Tied()
    file = tmp_path / "model.safetensors"
    file.write_bytes(staged(saved.state_dict(), plain=True)[1])
    missing, unexpected = safetensors.torch.load_model(fresh, file)
    assert not missing
    assert not unexpected
    for name, value in saved.state_dict().items():
        assert torch.equal(value, fresh.state_dict()[name]), name
    loaded = safetensors.torch.load_file(file)
    assert "head.weight" not in loaded
    assert loaded["conv.weight"].is_contiguous()
    with safetensors.safe_open(file, "pt") as opened:
        assert opened.metadata() == {"head.weight": "embed.weight"}


def test_names_in_a_model_file_are_those_of_the_state_dict():
    model = Tied()
    flat = flatten(model.state_dict())
    assert {*flat.tensors, *flat.aliases} == set(model.state_dict())
    assert Layout.plan(model.state_dict(), plain=True).aliases == flat.aliases


def test_a_file_in_memory_order_opens_with_safetensors_too(tmp_path):
    tree = {
        "w": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "n": torch.tensor(3),
        "e": torch.ones(0),
    }
    file = tmp_path / "training.safetensors"
    file.write_bytes(staged(tree)[1])
    loaded = safetensors.torch.load_file(file)
    assert torch.equal(loaded["w"], tree["w"].permute(0, 2, 3, 1))
    assert loaded["n"] == 3
