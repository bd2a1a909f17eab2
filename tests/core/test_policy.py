"""Policies take what YAML, LightningCLI and Hydra give, and refuse what cannot be meant."""

from __future__ import annotations

import dataclasses
import inspect
import signal

import pytest

from resume_core.policy import Changes, Check, Keep, Preemption, SaveEvery, Watch, as_policy, plain_options


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


def test_a_policy_may_be_given_by_its_fields():
    assert as_policy(SaveEvery, {"steps": 5, "minutes": None}, "save") == SaveEvery(steps=5, minutes=None)
    assert as_policy(Keep, None, "keep") == Keep()
    assert as_policy(Changes, Changes(allow=("seed",)), "changes") == Changes(allow=("seed",))


def test_containers_of_omegaconf_are_taken_as_plain_ones():
    omegaconf = pytest.importorskip("omegaconf")
    given = omegaconf.OmegaConf.create({"allow": ["seed", "data.0"], "otherwise": "warn"})
    changes = as_policy(Changes, given, "changes")
    assert changes == Changes(allow=("seed", "data.0"), otherwise="warn")
    options = plain_options(omegaconf.OmegaConf.create({"client": {"names": ["a"]}}))
    assert type(options["client"]) is dict
    assert type(options["client"]["names"]) is list


@pytest.mark.parametrize("value", [{"step": 5}, 5, ["steps"]], ids=repr)
def test_a_policy_that_cannot_be_meant_is_named(value):
    with pytest.raises(TypeError, match="save "):
        as_policy(SaveEvery, value, "save")


def test_a_field_out_of_range_says_which():
    with pytest.raises(ValueError, match=r"SaveEvery\.steps"):
        as_policy(SaveEvery, {"steps": 0}, "save")


@pytest.mark.parametrize(
    ("make", "meant"),
    [
        (lambda: SaveEvery(step=5), "'steps'"),
        (lambda: SaveEvery(minute=5), "'minutes'"),
        (lambda: SaveEvery(5, epoch=1), "'epochs'"),
        (lambda: Keep(thin_afer=3), "'thin_after'"),
        (lambda: Keep(best="loss", mode="mim"), "'min'"),
        (lambda: Changes(alow="seed"), "'allow'"),
        (lambda: Changes(otherwise="warning"), "'warn'"),
        (lambda: Preemption(signals="SIGTRM"), "'SIGTERM'"),
        (lambda: Preemption(signals=("TERM",)), "'SIGTERM'"),
        (lambda: Preemption(notices="awz"), "'aws'"),
        (lambda: Preemption(max_hour=2), "'max_hours'"),
        (lambda: Check(step=3), "'steps'"),
        (lambda: Check(on_mismatch="stopp"), "'stop'"),
        (lambda: Watch(on="Stop"), "'stop'"),
        (lambda: Watch(one=True), "'on'"),
    ],
)
def test_a_misspelt_word_is_answered_with_the_nearest(make, meant):
    with pytest.raises((TypeError, ValueError), match=f"Did you mean {meant}") as caught:
        make()
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("allow", [None, True, 5])
def test_what_is_no_name_says_how_names_are_given(allow):
    with pytest.raises(TypeError, match=r"Changes\.allow must be names, as in"):
        Changes(allow=allow)


def test_signals_may_be_those_of_the_module():
    assert Preemption(signals=(signal.SIGTERM, "SIGUSR1")).signals == ("SIGTERM", "SIGUSR1")
    assert Preemption(signals=signal.SIGTERM).signals == ("SIGTERM",)


@pytest.mark.parametrize("kind", [SaveEvery, Keep, Changes, Preemption, Check, Watch])
def test_tools_see_the_fields_and_their_types(kind):
    assert list(inspect.signature(kind).parameters) == [field.name for field in dataclasses.fields(kind)]
    assert dataclasses.replace(kind()) == kind()
