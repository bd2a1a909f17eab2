"""The fast way to Python's global generator is the public one in all it does."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resume_core.capture import python_rng
from resume_core.capture.python_rng import put_back_python, save_python

DRAWS = {
    "random": random.random,
    "gauss": lambda: random.gauss(0, 1),  # leaves a second value pending
    "bits": lambda: random.getrandbits(77),
    "shuffle": lambda: random.shuffle(list(range(5))),
    "seed": lambda: random.seed(3),
}
SEQUENCES = st.lists(st.sampled_from(sorted(DRAWS)), max_size=8)


@pytest.fixture(params=[True, False], ids=["by address", "by the public functions"])
def way(request, monkeypatch):
    if not request.param:
        monkeypatch.setattr(python_rng, "_MEMORY", None)
    return request.param


def test_the_layout_is_known_here():
    assert python_rng._MEMORY is not None


@pytest.mark.parametrize("before", [[], ["gauss"], ["random"] * 700, ["gauss", "random"]])
@pytest.mark.parametrize("inside", [["random"], ["gauss"], ["gauss", "gauss"], ["random"] * 700, ["seed"]])
def test_a_state_that_is_put_back_is_the_one_that_was_saved(way, before, inside):
    random.seed(11)
    for name in before:
        DRAWS[name]()
    expected = random.getstate()
    saved = save_python()
    assert random.getstate() == expected
    for name in inside:
        DRAWS[name]()
    put_back_python(saved)
    assert random.getstate() == expected


@given(SEQUENCES, SEQUENCES)
def test_any_draws_before_and_inside_leave_no_trace(before, inside):
    random.seed(5)
    for name in before:
        DRAWS[name]()
    expected, saved = random.getstate(), save_python()
    for name in inside:
        DRAWS[name]()
    put_back_python(saved)
    assert random.getstate() == expected


def test_a_layout_that_is_not_the_one_expected_is_not_used(monkeypatch):
    monkeypatch.setattr(python_rng, "_memory_of", lambda generator: memoryview(bytes(2500)))
    assert not python_rng._probe_layout()
