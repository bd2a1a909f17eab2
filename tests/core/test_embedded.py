"""Runs whose pieces travel in the framework's own checkpoints."""

from __future__ import annotations

import logging
from collections import defaultdict

import numpy as np
import pytest
import torch

from resume_core.embedded import EmbeddedSession, Given, look_for_entry
from resume_core.entry import ENTRY, Entry, Incomplete
from resume_core.errors import ConfigChangedError, CorruptCheckpointError, ResumeError, UnsupportedStateError
from resume_core.policy import Changes
from resume_core.ranks import Ranks
from resume_core.session import Session
from resume_core.state import Fact, Progress, State

LOG = logging.getLogger("test")


def entry(**pieces):
    return Entry(2**64 - 1, Progress(step=3, batch=4), {"seed": Fact(7)}, {"hook": None}, pieces)


def look(raw, **arguments):
    return look_for_entry({ENTRY: raw}, "file.ckpt", LOG, **arguments)


def through_a_file(tmp_path, raw):
    torch.save(raw, tmp_path / "file")
    return torch.load(tmp_path / "file", weights_only=True)


def given(value):
    state = State(model={"value": torch.full((3,), value)}, training={}, rank={})
    return Given("file.ckpt", Entry(5, Progress(step=3), {"seed": Fact(7), "batch_size": Fact(4)}, {}, {}), state)


def test_an_entry_comes_back_whatever_it_holds(tmp_path):
    pieces = {"odd": [np.float32(1.5), defaultdict(list, {1: [2]}), float("inf"), {3}], "tensor": torch.ones(2).t()}
    found = look(through_a_file(tmp_path, entry(**pieces).encode()))
    assert torch.equal(found.pieces.pop("tensor"), pieces.pop("tensor"))
    assert found == entry(**pieces)


def test_what_cannot_be_held_is_refused_with_its_place():
    with pytest.raises(UnsupportedStateError, match=r"pieces\.odd"):
        entry(odd=object()).encode()


def test_an_entry_is_taken_out_of_the_checkpoint():
    checkpoint = {"epoch": 1, ENTRY: entry().encode()}
    assert look_for_entry(checkpoint, "file.ckpt", LOG) == entry()
    assert checkpoint == {"epoch": 1}


@pytest.mark.parametrize(
    ("raw", "said"),
    [(None, "without ResumeCallback"), (Incomplete("in a hook").encode(), "in a hook"), (entry().encode(), "a single")],
)
def test_what_will_not_be_exact_is_said(caplog, raw, said):
    assert look(raw, num_ranks=2) is None
    assert said in caplog.text
    assert "augmentation of samples" in caplog.text


@pytest.mark.parametrize(
    "damage",
    [{"format": 99}, {"format": None}, {"structure": "{"}, {"structure": 3}, {"tensors": {}}, {"structure": "{}"}],
)
def test_damage_is_no_python_error(damage):
    with pytest.raises(CorruptCheckpointError, match=r"file\.ckpt"):
        look(entry(tensor=torch.ones(2)).encode() | damage)


def test_without_a_checkpoint_the_key_comes_from_the_seed(toy):
    keys = []
    for seed in (7, 7, 8):
        session = EmbeddedSession(made := toy(), log=LOG)
        session.start(seed)
        keys.append(made.key)
    assert keys[0] == keys[1] != keys[2]


def test_a_checkpoint_is_compared_before_it_is_applied(toy):
    session = EmbeddedSession(changed := toy(batch_size=8), log=LOG)
    session.give(given(2.0))
    with pytest.raises(ConfigChangedError, match="batch_size"):
        session.start(7)
    assert changed.applied is None
    session = EmbeddedSession(changed, changes=Changes(allow=("batch_size",)), log=LOG)
    session.give(given(2.0))
    session.prepare(9)
    session.start(9)
    assert (changed.key, changed.value.tolist()) == (5, [2.0] * 3)


def test_what_is_carried_is_what_the_next_run_is_compared_with(toy):
    session = EmbeddedSession(toy(), log=LOG)
    session.start(7)
    found = look(session.carry(Progress(step=2), {"hook": None}, {"a": 1}))
    assert found.config["batch_size"] == Fact(4)
    assert found.pieces == {"a": 1}


def test_a_place_where_nothing_is_exact_is_said_once(toy, caplog):
    session = EmbeddedSession(toy(), log=LOG)
    session.start(7)
    for _ in range(2):
        assert "incomplete" in session.carry_none("in a hook", "Save elsewhere.")
        assert "incomplete" in session.carry(Progress(), {}, {"odd": object()})
    assert caplog.text.count("in a hook cannot be resumed exactly. Save elsewhere.") == 1
    assert caplog.text.count("pieces.odd") == 2  # the place, and the reason that names it


def test_several_ranks_are_refused(toy):
    made = toy()
    made.ranks = Ranks(0, 2, object())
    with pytest.raises(ResumeError, match="2 processes"):
        EmbeddedSession(made, log=LOG).start(7)


# ---- with a directory


def test_a_run_with_a_directory_starts_from_a_checkpoint_of_the_frameworks(directory, toy, tmp_path):
    file = tmp_path / "origin.ckpt"
    file.write_bytes(b"1" * 100)
    first = Session(made := toy(), directory)
    assert first.starts_from(file, named=True)
    first.give(given(2.0))
    first.start(7)
    first.begin(Progress(step=3))
    first.end()
    assert (made.key, made.value.tolist()) == (5, [2.0] * 3)
    later = Session(again := toy(), directory)
    assert not later.starts_from(file, named=True)
    assert later.start(7).progress.step == 3
    assert (again.key, again.value.tolist()) == (5, [2.0] * 3)


def test_the_origin_is_handed_on_from_attempt_to_attempt(directory, toy, tmp_path):
    file, other = tmp_path / "origin.ckpt", tmp_path / "other.ckpt"
    file.write_bytes(b"1" * 100)
    other.write_bytes(b"2" * 100)
    for start in range(3):
        session = Session(toy(), directory)
        if start == 0:
            session.starts_from(file, named=True)
        session.start(7)
        session.begin(Progress(step=start))
        session.boundary(Progress(step=start + 1))
        session.end()
    with pytest.raises(ConfigChangedError, match=r"other\.ckpt.*origin\.ckpt"):
        Session(toy(), directory).starts_from(other, named=True)
    assert not Session(toy(), directory).starts_from(other, named=False)
    assert Session(toy(), directory, resume="never").starts_from(other, named=True)
