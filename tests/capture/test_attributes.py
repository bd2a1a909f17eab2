"""Attributes that change during training are found by name."""

from __future__ import annotations

import re
import threading
from collections import deque

import numpy as np
import pytest
import torch
import torchmetrics
from torch.nn.utils import parametrizations, prune, spectral_norm, weight_norm

from resume_core.capture.attributes import AttributeWatch


class Stats:
    def __init__(self):
        self.best, self.inner, self.home = 1.0, {"n": [0] * 10}, None


class Module(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.stats = Stats()
        self.stats.home = self  # a way back, as objects have
        self.array = np.zeros(100)
        self.queue = deque(maxlen=2)
        self.counts = [0, 0, 0]
        self.hidden = [torch.nn.Linear(2, 2)]
        self.held = [torchmetrics.MeanMetric()]
        self.layer = torch.nn.Linear(2, 2)
        self.metric = torchmetrics.MeanMetric()
        self.outputs = []
        self.table = {}
        self.count = 0
        self.rate = 0.5
        self.cache = torch.zeros(2)
        self.register_buffer("running", torch.zeros(2))
        self.again = [self.layer, self.metric]
        self.lock, self.pattern = threading.Lock(), re.compile("x")


def watch(module, known=()):
    return AttributeWatch({"module": module}, frozenset(known))


CHANGES = {
    "count": lambda m: setattr(m, "count", 1),
    "rate": lambda m: setattr(m, "rate", 0.25),
    "outputs": lambda m: m.outputs.append(torch.ones(1)),
    "table": lambda m: m.table.update(a=1),
    "cache": lambda m: m.cache.add_(1),
    "late": lambda m: setattr(m, "late", 3),
    "stats.best": lambda m: setattr(m.stats, "best", 2.0),
    "stats.inner": lambda m: m.stats.inner["n"].append(1),
    "array": lambda m: m.array.__setitem__(slice(None), 1),
    "queue": lambda m: m.queue.append(1),
    "counts": lambda m: m.counts.__setitem__(0, 5),
    "hidden": lambda m: torch.nn.init.ones_(m.hidden[0].weight),
    "held": lambda m: m.held[0].update(1.0),
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


def test_objects_of_the_users_that_are_told_of_are_not_looked_into():
    module = Module()
    watched = AttributeWatch({"module": module}, frozenset(), (Stats,))
    module.stats.best = 7.0
    assert watched.changed() == []


def test_objects_of_libraries_are_their_own_business():
    module = Module()
    module.generator = np.random.default_rng(1)
    module.optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    watched = watch(module)
    module.generator.random()
    module.optimizer.param_groups[0]["lr"] = 0.2
    assert watched.changed() == []


def test_an_owner_that_another_holds_is_named_by_its_own_name():
    module, callback = Module(), Stats()
    callback.home = module
    watched = AttributeWatch({"callback": callback, "module": module}, frozenset())
    module.count = 5
    assert watched.changed() == ["module.count"]


class Holds(torch.nn.Module):
    """Has what its state covers in other attributes, too."""

    def __init__(self):
        super().__init__()
        self.layer, self.rnn = torch.nn.Linear(2, 2), torch.nn.LSTM(2, 2)
        self.register_buffer("running", torch.zeros(4))
        self.listed = [self.layer.weight, (self.running[1:],)]
        self.by_name = {"bias": self.layer.bias.data}
        self.view = self.layer.weight.detach()
        self.wrapped = [torch.nn.Sequential(self.layer)]
        self.normed = parametrizations.weight_norm(torch.nn.Linear(2, 2))
        self.pruned = prune.l1_unstructured(torch.nn.Linear(2, 2), "weight", 1)
        self.spectral = spectral_norm(torch.nn.Linear(2, 2))


@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
def test_what_the_state_covers_is_not_named_wherever_it_is_held():
    module = Holds()
    module.old_norm = weight_norm(torch.nn.Linear(2, 2))
    x = torch.ones(1, 2)
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    watched = watch(module)
    for _ in range(2):
        layers = (module.layer, module.normed, module.pruned, module.spectral, module.old_norm)
        loss = sum(layer(x).sum() for layer in layers) + module.rnn(x)[0].sum()
        loss.backward()
        optimizer.step()
        module.running.add_(1)
    assert watched.changed() == []
    module.listed.append(module.layer.bias)
    module.other = [torch.zeros(2)]
    assert watched.changed() == ["module.listed", "module.other"]


def test_a_module_whose_own_attributes_are_not_watched_is_saved_all_the_same():
    module, callback = Module(), Stats()
    callback.home = [module, module.layer.weight]
    watched = AttributeWatch({"callback": callback}, frozenset(), saved=(module,))
    with torch.no_grad():
        module.layer.weight.add_(1)
    assert watched.changed() == []


class Counting(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.count, self.inner = 0, torch.nn.Linear(1, 1)
        self.inner.seen = 0

    def step(self):
        self.count += 1
        self.inner.seen += 1


class WithExtraState(Counting):
    def get_extra_state(self):
        return {"count": self.count}

    def set_extra_state(self, state):
        self.count = state["count"]


class WithOwnSave(Counting):
    def _save_to_state_dict(self, destination, prefix, keep_vars):
        destination[f"{prefix}count"] = torch.tensor(self.count)


@pytest.mark.parametrize("cls", [WithExtraState, WithOwnSave, Counting])
def test_what_a_module_saves_by_a_method_of_its_own_is_not_named(cls):
    module = torch.nn.Sequential(cls())
    watch = AttributeWatch({"module": module}, frozenset())
    module[0].step()
    own = ["module.0.count"] if cls is Counting else []
    assert watch.changed() == [*own, "module.0.inner.seen"]
