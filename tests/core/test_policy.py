"""Policies take what YAML, LightningCLI and Hydra give, and refuse what cannot be meant."""

from __future__ import annotations

import dataclasses

import pytest

from resume_core.policy import Changes, Keep, SaveEvery


@pytest.mark.parametrize("given", [["seed", "data"], ("seed", "data"), {"seed": 1, "data": 2}.keys()])
def test_allow_takes_any_sequence(given):
    assert Changes(allow=given).allow == ("seed", "data")


def test_a_single_name_may_stand_alone():
    assert Changes(allow="seed").allow == ("seed",)


def test_a_name_covers_what_lies_below_it_and_nothing_beside_it():
    changes = Changes(allow=("optimizer.0",))
    assert changes.accepts("optimizer.0")
    assert changes.accepts("optimizer.0.lr")
    assert not changes.accepts("optimizer.01")
    assert not changes.accepts("optimizer")


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: SaveEvery(steps=0), "steps"),
        (lambda: SaveEvery(steps=-5), "steps"),
        (lambda: SaveEvery(steps=2.5), "steps"),
        (lambda: SaveEvery(steps="10"), "steps"),
        (lambda: SaveEvery(steps=True), "steps"),
        (lambda: SaveEvery(minutes=0), "minutes"),
        (lambda: SaveEvery(minutes=float("nan")), "minutes"),
        (lambda: Keep(last=0), "last"),
        (lambda: Keep(last=1.5), "last"),
        (lambda: Changes(otherwise="ignore"), "otherwise"),
    ],
)
def test_what_cannot_be_meant_is_a_value_error_that_names_the_field(make, field):
    with pytest.raises(ValueError, match=field):
        make()


def test_policies_cannot_be_changed_afterwards():
    with pytest.raises(dataclasses.FrozenInstanceError):
        SaveEvery().steps = 5
