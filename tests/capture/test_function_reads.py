"""What the function of a schedule reads where it lies."""

from __future__ import annotations

import argparse
import functools
import math
import types
from dataclasses import dataclass

import pytest

from resume_core.capture.facts_version import FACTS, is_new
from resume_core.capture.function_reads import function_reads
from resume_core.state import Fact

ARGS = argparse.Namespace(warmup=100, optim=types.SimpleNamespace(rate=0.5), model=object())
OWN = types.ModuleType("constants")
OWN.__file__, OWN.K, OWN.deep = "/home/me/constants.py", 0.97, types.SimpleNamespace(rate=3)
rate = 12345  # a global that has the name of an attribute


@dataclass
class Config:
    rate: float = 0.9


class Slots:
    __slots__ = ("empty", "rate")

    def __init__(self):
        self.rate = 7


class Constants:
    rate = 0.25


CONFIG, SLOTS = Config(), Slots()


class Job:
    def __init__(self):
        self.total = 40
        self.config = Config()

    @property
    def computed(self):
        raise AssertionError("nothing of the user's is called")

    def __getattr__(self, name):
        raise AssertionError("nor is this")

    def method(self, step):
        return step / self.total + self.config.rate + self.computed + self.nothing

    def closed_over(self):
        return lambda step: step / self.total

    def nested(self):
        return lambda step: [each / self.total for each in range(step)]


class Callable:
    def __init__(self):
        self.rate = 1
        self.config = Config()

    def __call__(self, step):
        return self.rate**step * self.config.rate * Constants.rate


def whole(step):
    def inner(each):
        return each * ARGS.warmup

    return inner(step)


def chained(step):
    return step.real + ARGS.optim.rate.real + ARGS.missing + MISSING.rate  # noqa: F821


CASES = {
    "a namespace": (lambda step: step / ARGS.warmup, {"ARGS.warmup": 100}),
    "a namespace in one": (lambda step: step * ARGS.optim.rate, {"ARGS.optim.rate": 0.5}),
    "an object": (lambda step: ARGS.model, {}),
    "a dataclass": (lambda step: CONFIG.rate**step, {"CONFIG.rate": 0.9}),
    "slots": (lambda step: SLOTS.rate + SLOTS.empty, {"SLOTS.rate": 7}),
    "a class": (lambda step: Constants.rate, {"Constants.rate": 0.25}),
    "a module of the user's own": (lambda step: OWN.K * OWN.deep.rate, {"OWN.K": 0.97, "OWN.deep.rate": 3}),
    "a module of a library": (lambda step: math.pi * step, {}),
    "the self of a method": (Job().method, {"self.config.rate": 0.9, "self.total": 40}),
    "a self that is closed over": (Job().closed_over(), {"self.total": 40}),
    "in a comprehension": (Job().nested(), {"self.total": 40}),
    "a callable object": (Callable(), {"Constants.rate": 0.25, "self.config.rate": 0.9}),
    "a partial": (functools.partial(lambda step, k: k * ARGS.warmup, k=3), {"ARGS.warmup": 100}),
    "an inner function": (whole, {"ARGS.warmup": 100}),
    "no further than a number": (chained, {"ARGS.optim.rate": 0.5}),
    "a global": (lambda step: rate**step, {"rate": 12345}),
    "nothing of a library": (math.sqrt, {}),
}


@pytest.mark.parametrize("case", CASES)
def test_it_is_told_by_the_name_that_the_function_has_for_it(case):
    function, expected = CASES[case]
    assert function_reads(function) == expected


def test_a_global_that_has_the_name_of_an_attribute_is_not_read():
    assert function_reads(lambda step: CONFIG.rate) == {"CONFIG.rate": 0.9}


def test_a_run_of_a_release_that_did_not_know_them_is_not_refused_for_them():
    name = "scheduler.0.lr_lambdas.0.args.warmup"
    assert is_new(name, {FACTS: Fact(3, "info")})
    assert not is_new(name, {FACTS: Fact(4, "info")})
    assert not is_new("scheduler.0.lr_lambdas.0.args.0", {FACTS: Fact(3, "info")})
