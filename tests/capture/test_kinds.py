"""Objects of the user's are looked at without asking them what they are."""

from __future__ import annotations

import weakref

import pytest
import torch

from resume_core.capture.attributes import AttributeWatch
from resume_core.capture.dataset_attributes import DatasetWatch
from resume_core.capture.generators import find_generators
from resume_core.capture.global_generators import find_training_generators
from resume_core.capture.kinds import is_a


class Request:
    """A proxy as those of frameworks for the web are, where there is no request."""

    @property
    def __class__(self):
        raise RuntimeError("stands for nothing now")


class Gone:
    pass


def gone():
    return weakref.proxy(Gone())


PROXIES = {"a request": Request, "what is gone": gone, "another": lambda: weakref.proxy(LIVES)}
LIVES = torch.nn.Linear(1, 1)


class Trains(torch.nn.Module):
    def __init__(self, proxy):
        super().__init__()
        self.size, self.generator = 1, torch.Generator()
        vars(self)["proxy"] = proxy  # torch looks at what is assigned

    def __getitem__(self, at):
        return at


@pytest.mark.parametrize("proxy", PROXIES.values(), ids=PROXIES)
def test_a_proxy_owns_nothing_and_stops_nothing(proxy):
    module = Trains(proxy())
    assert find_generators(module) == (module.generator,)
    assert find_training_generators([module]) == ()
    attributes, data = AttributeWatch({"module": module}, frozenset()), DatasetWatch({"data": module})
    module.size = 2
    assert attributes.changed() == ["module.size"]
    assert data.changed() == ["data.size"]


def test_it_is_no_more_than_its_type():
    assert is_a(3, int)
    assert is_a(True, (str, int))
    assert not is_a(weakref.proxy(LIVES), torch.nn.Module)
