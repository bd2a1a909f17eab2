"""Random generators that training draws from and no state holds are found by name, and no others."""

from __future__ import annotations

import functools
import random

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from resume_core.capture.generators import find_generators
from resume_core.capture.global_generators import find_training_generators, generators_of_loader, running_code

gen = torch.Generator()
numpy_gen = np.random.default_rng(0)
legacy_gen = np.random.RandomState(0)
python_gen = random.Random(0)
many = {"a": torch.Generator()}


class Settings:
    shared_gen = torch.Generator()


def helper(x):
    return x + python_gen.random()


class Augment:
    def __call__(self, x):
        return x * legacy_gen.rand()


augment = Augment()


class Plain(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.rand(1, generator=gen)  # drawn again at each start

    def forward(self, x):
        return x + torch.rand(1) + random.random() + np.random.rand()


def using(function):
    """A module whose ``forward`` is that function."""
    return torch.nn.Sequential(type("Net", (Plain,), {"forward": lambda self, x: function(x)})())


USES = {
    "gen": lambda x: torch.rand(1, generator=gen),
    "numpy_gen": lambda x: numpy_gen.random(),
    "legacy_gen": lambda x: augment(x),
    "python_gen": helper,
    "many": lambda x: torch.rand(1, generator=many["a"]),
}


@pytest.mark.parametrize("name", USES)
def test_what_a_module_draws_from_is_named(name):
    assert find_training_generators([using(USES[name])]) == (f"{__name__}.{name}",)


def test_a_generator_of_a_class_is_named():
    net = using(lambda x: torch.rand(1, generator=Settings.shared_gen))
    assert find_training_generators([net]) == ("Settings.shared_gen",)


def test_a_generator_of_the_function_in_which_a_class_was_made_is_named():
    mine = torch.Generator()

    class Net(Plain):
        def forward(self, x):
            return torch.rand(1, generator=mine)

    name = "mine in test_a_generator_of_the_function_in_which_a_class_was_made_is_named()"
    assert find_training_generators([Net()]) == (name,)


def test_a_function_that_a_module_holds_is_looked_at():
    net = Plain()
    net.augment = functools.partial(helper)
    assert find_training_generators([net]) == (f"{__name__}.python_gen",)


def test_what_is_captured_or_seeded_already_is_not_named():
    net = using(USES["gen"])
    net.kept = gen
    assert find_training_generators([net], known=find_generators(net)) == ()
    loader = DataLoader(TensorDataset(torch.zeros(4)), shuffle=True, generator=gen)
    assert find_training_generators([using(USES["gen"])], known=generators_of_loader(loader)) == ()


def test_nothing_is_said_of_draws_before_training_nor_of_what_libraries_have():
    net = torch.nn.Sequential(Plain(), torch.nn.Dropout(), torch.nn.TransformerEncoderLayer(4, 2))
    assert find_training_generators([net]) == ()


def test_of_a_running_loop_is_named_what_it_draws_from_and_not_what_has_made_its_data():
    of_data, of_loop = torch.Generator(), random.Random(0)
    torch.rand(4, generator=of_data)
    np.random.default_rng(0).random()
    found = find_training_generators([], code=running_code())
    for x in range(2):
        of_loop.random()
        torch.rand(1, generator=gen)
        helper(x)
    place = "test_of_a_running_loop_is_named_what_it_draws_from_and_not_what_has_made_its_data"
    assert found == (f"of_loop in {place}()", f"{__name__}.gen", f"{__name__}.python_gen")


class Proxy:
    """As those of frameworks for the web are, where there is no request."""

    @property
    def __class__(self):
        raise RuntimeError("stands for nothing now")


STANDS_FOR_NOTHING = Proxy()


def test_what_raises_when_it_is_looked_at_is_passed_over():
    class Trains:
        def training_step(self):
            return STANDS_FOR_NOTHING, gen.initial_seed()

    assert find_training_generators([Trains()]) == (f"{__name__}.gen",)
