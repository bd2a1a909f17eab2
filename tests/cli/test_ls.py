"""What ``exact-resume ls`` says of a run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from test_verify import trained
from typer.testing import CliRunner

from resume_core import Keep
from resume_core.cli import app
from resume_core.cli.words import age as age_of
from resume_core.naming import resolve
from resume_core.storage import Lineage, open_store


def ls(*arguments):
    found = CliRunner().invoke(app, ["ls", *arguments], env={"COLUMNS": "200"})
    return found.exit_code, found.stdout + found.stderr


def listed(*arguments):
    code, text = ls(*arguments, "--json")
    assert code == 0
    return json.loads(text)


@pytest.fixture
def run(tmp_path):
    """Two attempts: the second went on from step 3 of the first."""
    directory = str(tmp_path / "run")
    trained(directory)
    trained(directory, 5)
    return directory


def test_attempts_and_checkpoints_newest_first(run):
    code, text = ls(run)
    assert code == 0
    first, second = (attempt.name for attempt in Lineage(open_store(run)).attempts())
    assert text.index(second) < text.index(f"\n{first}")
    assert f"from {first}/step-000000003" in text
    assert "began anew" in text
    assert text.index("step-000000005") < text.index("step-000000004")
    for word in ("schedule", "start", "finished", "to step 3, batch 3"):
        assert word in text


def test_json_holds_what_there_is(run):
    newer, older = listed(run)["attempts"]
    assert [one["step"] for one in newer["checkpoints"]] == [5, 4]
    assert [one["step"] for one in older["checkpoints"]] == [3, 2, 1, 0]
    assert newer["resumed_from"] == older["checkpoints"][0]["path"]
    assert all(one["size_bytes"] > 0 and one["is_on_line"] for one in newer["checkpoints"])
    assert older["history"]["cause"] == "finished"
    assert newer["checkpoints"][0]["tiers"] == [run]


def test_why_each_is_kept(tmp_path):
    directory = trained(str(tmp_path / "run"), 7, Keep(last=2, every_steps=3, thin_after=2))
    (attempt,) = listed(directory, "--all")["attempts"]
    kept = {one["step"]: one["kept_by"] for one in attempt["checkpoints"]}
    assert kept == {7: ["last=2"], 6: ["last=2", "every_steps=3"], 3: ["every_steps=3"]}
    assert {one["step"]: one["state"] for one in attempt["checkpoints"]}[3] == "weights only"
    text = ls(directory)[1]  # all are shown, so it is known without being asked for
    assert "weights only; every_steps=3" in text
    assert "kept by" not in ls(directory, "-n", "1")[1]


def test_only_the_newest_are_read(run):
    code, text = ls(run, "-n", "3")
    assert code == 0
    assert "and 3 older" in text
    assert sum(len(attempt["checkpoints"]) for attempt in listed(run, "-n", "3")["attempts"]) == 3


def test_what_an_old_attempt_wrote_later_is_on_no_line(tmp_path):
    directory = trained(str(tmp_path / "run"))
    lineage = Lineage(open_store(directory))
    (first,) = lineage.attempts()
    lineage.claim(restored_from=resolve(lineage, "attempt-0001/1"), info={"keep": {"last": 1}})
    _, older = listed(directory)["attempts"]
    assert {one["step"]: one["is_on_line"] for one in older["checkpoints"]} == {3: False, 2: False, 1: True, 0: True}
    text = ls(directory)[1]
    assert text.count("on no line") == 2
    assert text.count("on no line: it goes once attempt-0002") == 2  # as `prune` says
    assert "on no line\n" in ls(directory, "-n", "1")[1]  # not all are known
    assert older["name"] == first.name


def test_what_another_run_has_in_the_directory_is_told_from_what_was_left(tmp_path):
    directory = trained(str(tmp_path / "run"))
    trained(directory, resume="never")
    for one in listed(directory)["attempts"][1]["checkpoints"]:
        assert one["off_line"].startswith("of another run: ")


def test_what_is_going_to_go_is_told(tmp_path):
    directory = trained(str(tmp_path / "run"))
    (committed,) = Path(directory).glob("*/step-000000003")
    aside = shutil.copytree(committed, tmp_path / "aside")
    trained(directory, 5, keep=Keep(last=2), resume="attempt-0001/1")
    shutil.copytree(aside, committed)  # as an old attempt commits that has not noticed
    _, older = listed(directory)["attempts"]
    assert {one["step"]: one["off_line"] for one in older["checkpoints"]} == {3: "it goes after the next save"}


def test_damage_is_shown(run):
    path = sorted(Path(run).glob("*/step-000000002/manifest.json"))[0]
    path.write_bytes(b"{}")
    sorted(Path(run).glob("*/history.json"))[0].write_bytes(b"{}")
    code, text = ls(run)
    assert code == 0
    assert "damaged:" in text
    sorted(Path(run).glob("*/attempt.json"))[0].write_bytes(b"{}")
    assert listed(run)["damaged"]


def test_tiers_are_counted(tmp_path):
    directory, scratch = str(tmp_path / "run"), str(tmp_path / "scratch")
    trained(directory, scratch=scratch)
    assert "saved for  tiers" in ls(directory, "--scratch", scratch)[1]
    assert "saved for  tiers" not in ls(directory)[1]


@pytest.mark.parametrize(
    ("name", "words"), [("empty", "there is no attempt in it"), ("missing", "missing does not exist")]
)
def test_no_run(tmp_path, name, words):
    (tmp_path / "empty").mkdir()
    code, text = ls(str(tmp_path / name))
    assert code == 2
    assert words in text
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty"]


def test_names_are_no_markup(tmp_path):
    directory = trained(str(tmp_path / "[red]run"))
    assert "[red]run" in ls(directory)[1]


@pytest.mark.parametrize(("time", "age"), [(None, ""), ("yesterday", ""), ("2000-01-01T00:00:00", "")])
def test_an_age_that_cannot_be_told(time, age):
    assert age_of(time) == age


def test_a_checkpoint_that_has_lost_its_manifest_is_shown(run):
    next(Path(run).glob("*/step-000000005/manifest.json")).unlink()
    code, text = ls(run)
    assert (code, "its manifest.json is missing" in text) == (0, True)
