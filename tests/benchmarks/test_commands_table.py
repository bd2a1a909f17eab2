"""The benchmark of the commands, on a few checkpoints: they are real, and every command that is measured answers."""

from __future__ import annotations

import commands
import pytest

from resume_core.storage import Lineage, LocalStore, verify

pytestmark = pytest.mark.timeout(180)


def test_the_checkpoints_are_whole_and_every_command_answers(tmp_path):
    commands.train(tmp_path / "seed", num_tensors=2)
    commands.make(tmp_path / "seed", tmp_path / "run", num=6, num_attempts=2)
    store = LocalStore(tmp_path / "run")
    line = list(Lineage(store).candidates())
    assert [ref.name for ref in line] == [f"step-{step:09d}" for step in reversed(range(6))]
    assert all(verify([store], ref).ref == ref for ref in line)
    measured = dict(commands.one_round(tmp_path / "run", tmp_path))
    assert measured.keys() == {*commands.COMMANDS, *commands.RUN_ROWS}
    assert all(values[commands.COLUMN] > 0 for values in measured.values())
