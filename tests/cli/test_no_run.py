"""What is said of a place where there is no run."""

from __future__ import annotations

import pytest
from looking import said
from test_verify import trained

from resume_core.cli.drill.rehearsal import rehearse
from resume_core.errors import CheckpointNotFoundError
from resume_core.no_run import no_run
from resume_core.storage import open_store


@pytest.fixture
def runs(tmp_path):
    for name in "ab":
        trained(str(tmp_path / "runs" / name), 1)
    return tmp_path / "runs"


def say(place):
    return no_run(open_store(str(place)))


def test_each_kind_of_place_has_its_sentence(runs, tmp_path):
    (attempt,) = (runs / "a").iterdir()
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    assert say(tmp_path / "none").endswith("/none does not exist")
    assert say(tmp_path / "file").endswith("/file is a file, and no directory of a run")
    assert say(runs).endswith("runs is no directory of a run; runs lie below it: a, b")
    assert say(attempt).endswith(f"/{attempt.name} is an attempt of {runs / 'a'}. Give the directory of the run")
    checkpoint = attempt / "step-000000001"
    assert say(checkpoint).endswith(f"{checkpoint.name} is a checkpoint of {runs / 'a'}. Give the directory of the run")
    assert say(tmp_path / "empty").endswith("is no directory of a run: there is no attempt in it")
    (tmp_path / "empty" / "attempt-0001-7f3a").mkdir()
    assert say(tmp_path / "empty").endswith(
        "has no attempt: attempt-0001-7f3a has no attempt.json, as a start leaves that is killed at once"
    )


def test_a_name_that_is_misspelt_is_answered_with_the_one_that_is_there(runs):
    trained(str(runs / "baseline"), 1)
    assert say(runs / "basleine").endswith(f"/basleine does not exist. Did you mean {runs / 'baseline'}?")
    assert say(f"{runs}_").endswith(f"/{runs.name}_ does not exist. Did you mean {runs}?")
    (runs / "basleines").mkdir()
    assert say(runs / "basleine").endswith(f"Did you mean {runs / 'baseline'}?"), "there is no run in the other"
    assert say(runs / "none" / "baseline").endswith("/none/baseline does not exist")


def test_of_many_runs_some_are_named(runs):
    for number in range(9):
        trained(str(runs / f"many-{number}"), 1)
    assert say(runs).endswith("a, b, many-0, many-1, many-2 and more")


def test_on_another_store_too(tmp_path):
    trained("memory://no-run/one", 1)
    assert say("memory://no-run").endswith("runs lie below it: one")


@pytest.mark.parametrize("command", ["ls", "show", "verify", "plan", "prune", "report"])
def test_each_command_says_it(runs, tmp_path, command):
    out = ["-o", str(tmp_path / "page.html")] if command == "report" else []
    code, text = said(command, str(runs), *out)
    assert code == 2
    assert "runs lie below it: a, b" in " ".join(text.split())


def test_a_drill_of_no_run_starts_nothing(runs, tmp_path):
    with pytest.raises(CheckpointNotFoundError, match="runs lie below it: a, b"):
        rehearse(str(runs), ["touch", str(tmp_path / "started")], checkpoint=None, options={}, timeout_s=60, quiet=True)
    assert not (tmp_path / "started").exists()
