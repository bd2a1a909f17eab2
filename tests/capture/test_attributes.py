"""Attributes that change during training are found by name."""

from __future__ import annotations

import pytest
import torch
import torchmetrics

from resume_core.capture.attributes import AttributeWatch


class Module(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 2)
        self.metric = torchmetrics.MeanMetric()
        self.outputs = []
        self.table = {}
        self.count = 0
        self.rate = 0.5
        self.cache = torch.zeros(2)
        self.register_buffer("running", torch.zeros(2))


def watch(module, known=()):
    return AttributeWatch({"module": module}, frozenset(known))


CHANGES = {
    "count": lambda m: setattr(m, "count", 1),
    "rate": lambda m: setattr(m, "rate", 0.25),
    "outputs": lambda m: m.outputs.append(torch.ones(1)),
    "table": lambda m: m.table.update(a=1),
    "cache": lambda m: m.cache.add_(1),
    "late": lambda m: setattr(m, "late", 3),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_changes_is_named_once(name):
    module = Module()
    watched = watch(module)
    assert watched.changed() == []
    CHANGES[name](module)
    assert watched.changed() == [f"module.{name}"]
    assert watched.changed() == []


def test_a_change_in_a_submodule_is_named_by_its_path():
    module = torch.nn.Sequential(torch.nn.Dropout(0.1))
    watched = watch(module)
    module[0].p = 0.5
    assert watched.changed() == ["module.0.p"]


def test_what_is_saved_anyway_is_not_named():
    module = Module()
    watched = watch(module)
    with torch.no_grad():
        module.layer.weight.add_(1)
        module.running.add_(1)
    module.metric.update(3.0)
    module.eval()
    assert watched.changed() == []


def test_known_names_are_left_out():
    module = Module()
    watched = watch(module, known=("count",))
    module.count = 5
    assert watched.changed() == []
