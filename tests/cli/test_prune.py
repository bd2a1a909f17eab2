"""What ``exact-resume prune`` lists, deletes, and leaves alone beside a run that trains."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest
from crafted import tree
from test_verify import trained
from typer.testing import CliRunner
from walks import Start, Walk

from resume_core import Keep, SaveEvery
from resume_core.cli import app
from resume_core.cli.prune.doomed import Prune
from resume_core.naming import resolve
from resume_core.ranks import Ranks
from resume_core.session import Session
from resume_core.state import Progress
from resume_core.storage import Lineage, open_store


def prune(*arguments, answer=None):
    found = CliRunner().invoke(app, ["prune", *map(str, arguments)], env={"COLUMNS": "160"}, input=answer)
    return found.exit_code, found.stdout + found.stderr


def looked(*arguments):
    found = CliRunner().invoke(app, ["prune", *map(str, arguments), "--json"])
    assert found.exit_code == 0, found.output
    return json.loads(found.stdout)


def steps(run):
    return [int(path.parent.name[5:]) for path in sorted(Path(run).glob("*/step-*/manifest.json"))]


@pytest.fixture
def run(tmp_path):
    """Seven checkpoints of one attempt, all of which its own `Keep` keeps."""
    return trained(str(tmp_path / "run"), 6)


def test_a_dry_run_lists_and_deletes_nothing(run):
    before = tree(Path(run))
    code, text = prune(run, "--dry-run", "--last", 2)
    assert code == 0
    assert "5 of 7 go" in text
    assert text.count("no rule keeps it") == 5
    assert text.count("last=2") == 3
    found = looked(run, "--dry-run", "--last", 2)
    assert [one["step"] for one in found["doomed"]] == [0, 1, 2, 3, 4]
    sizes = sum(len(data) for name, data in before.items() if "/step" in name and not name.endswith("manifest.json"))
    assert found["freed_bytes"] == pytest.approx(sizes * 5 / 7, rel=0.01)
    assert (found["done"], tree(Path(run))) == (None, before)


def test_what_the_run_has_recorded_is_what_stays(run):
    code, text = prune(run)
    assert (code, "nothing to delete" in text, "Keep(last=9)" in text) == (0, True, True)


def test_the_list_is_what_training_itself_deletes(tmp_path):
    keep = Keep(last=2, every_steps=3, thin_after=2)
    by_training = trained(str(tmp_path / "one"), 8, keep)
    by_command = trained(str(tmp_path / "two"), 8)
    found = looked(by_command, "--yes", "--last", 2, "--every-steps", 3, "--thin-after", 2)
    assert len(found["done"]["thinned"]) == 2
    names = [{name.partition("/")[2] for name in tree(Path(run))} for run in (by_training, by_command)]
    assert names[0] == names[1]
    assert looked(by_command, "--yes", "--last", 2, "--every-steps", 3, "--thin-after", 2)["doomed"] == []


def test_what_a_killed_run_has_left_to_be_written_over_goes_and_what_a_living_one_has_stays(run, monkeypatch):
    (attempt,) = Path(run).glob("attempt-*")
    aside = attempt / ".model.safetensors.0123abcd.tmp"
    for path in (aside, attempt / ".check.json.0123abcd.tmp", attempt / ".notes.0123abcd.tmp"):
        path.write_bytes(b"x" * 5000)
    monkeypatch.setattr(importlib.import_module("resume_core.cli.prune.doomed"), "_alive_s", lambda *_: 3.0)
    assert looked(run, "--dry-run")["doomed"] == []
    monkeypatch.undo()
    (one,) = looked(run, "--dry-run")["doomed"]
    assert (one["path"], one["size_bytes"]) == (f"{attempt.name}/{aside.name}", 5000)
    assert "was killed" in one["why"]
    code, text = prune(run, "--yes")
    assert (code, "1 deleted, of 1" in text) == (0, True)
    assert sorted(path.name for path in attempt.glob(".*")) == [".check.json.0123abcd.tmp", ".notes.0123abcd.tmp"]
    assert steps(run) == list(range(7))


def test_it_asks_and_no_is_no(run, monkeypatch):
    before = tree(Path(run))
    code, text = prune(run, "--last", 2)
    assert (code, "give --yes" in text) == (2, True)
    monkeypatch.setattr(importlib.import_module("resume_core.cli.prune.command"), "_can_ask", lambda: True)
    code, text = prune(run, "--last", 2, answer="n\n")
    assert (code, "nothing was deleted" in text, tree(Path(run)) == before) == (1, True, True)
    assert prune(run, "--last", 2, answer="y\n")[0] == 0
    assert steps(run) == [5, 6]


def test_the_newest_stays_whatever_is_asked_for(run):
    assert prune(run, "--yes", "--last", 1)[0] == 0
    assert steps(run) == [6]
    assert prune(run, "--last", 0, "--yes")[0] == 2


@pytest.mark.parametrize("spoil", [Path.unlink, lambda path: path.write_bytes(path.read_bytes()[:-1])])
def test_a_checkpoint_that_has_lost_a_file_takes_the_place_of_none(run, spoil):
    for step in (5, 6):
        spoil(next(Path(run).glob(f"*/step-*{step}/training.safetensors")))
    found = looked(run, "--last", 2, "--yes")
    assert [one["step"] for one in found["doomed"]] == [0, 1, 2]
    assert [one["kept_by"] for one in found["stays"]] == [["damaged"], ["damaged"], ["last=2"], ["last=2"]]
    assert "training.safetensors" in found["odd"][0]
    assert steps(run) == [3, 4, 5, 6]
    assert Session(Walk(Ranks(), {}), run).start(7).progress.step == 4


def test_one_whose_manifest_is_torn_is_not_said_to_be_among_the_last(run):
    next(Path(run).glob("*/step-*6/manifest.json")).write_bytes(b"{")
    found = looked(run, "--last", 2, "--yes")
    assert [one["kept_by"] for one in found["stays"]] == [["damaged"], ["last=2"], ["last=2"]]
    assert steps(run) == [4, 5, 6]


def test_where_nothing_is_whole_nothing_goes(run):
    for path in Path(run).glob("*/step-*/training.safetensors"):
        path.unlink()
    code, text = prune(run, "--last", 1, "--yes")
    assert (code, "nothing to delete" in text) == (0, True)
    assert len(steps(run)) == 7


def test_the_best_and_a_metric_that_is_misspelt(tmp_path, monkeypatch):
    monkeypatch.setattr(Walk, "metrics", {"val_loss": 0.5})
    run = trained(str(tmp_path / "run"), 4)
    code, text = prune(run, "--yes", "--best", "val_lss")
    assert (code, "they have val_loss" in text) == (2, True)
    assert prune(run, "--yes", "--last", 1, "--best", "val_loss")[0] == 0
    assert steps(run) == [0, 4]


def test_a_run_that_trains_meanwhile_goes_on(tmp_path):
    walk = Walk(Ranks(), {})
    session = Session(walk, str(tmp_path / "run"), save=SaveEvery(steps=1, minutes=None), keep=Keep(last=9))
    session.start(7)
    session.begin(Progress())
    for step in range(1, 7):
        walk.step()
        session._saves.writer.wait()
        session.boundary(Progress(step=step, batch=step))
        if step == 4:
            session._saves.writer.wait()
            (attempt,) = (tmp_path / "run").iterdir()
            flight = attempt / "step-000000002.2"  # of a second fit, say, whose steps begin anew
            flight.mkdir()
            flight.joinpath("model.safetensors").write_bytes(b"in flight")
            assert prune(tmp_path / "run", "--yes", "--last", 2)[0] == 0
            assert flight.joinpath("model.safetensors").exists()
    session.end()
    assert steps(tmp_path / "run") == [3, 4, 5, 6]
    again = Start(tmp_path, num_steps=7)
    assert again.take()["restored"][1] == 6


def test_a_newer_attempt_ends_it(run):
    look = Prune(run, {}, {"last": 1})
    deleting = look.delete()
    next(deleting)
    lineage = Lineage(open_store(run))
    lineage.claim(restored_from=resolve(lineage, "attempt-0001/3"))
    with pytest.raises(Exception, match="has started after"):
        next(deleting)
    assert steps(run) == [1, 2, 3, 4, 5, 6]


def test_ctrl_c_leaves_every_checkpoint_whole_or_gone(run, monkeypatch):
    from resume_core.storage.local import LocalStore

    plain, num = LocalStore.delete, []

    def stop(store, key):
        num.append(key)
        if len(num) == 9:
            raise KeyboardInterrupt
        plain(store, key)

    monkeypatch.setattr(LocalStore, "delete", stop)
    code, text = prune(run, "--yes", "--last", 1)
    assert code == 130
    assert "1 deleted, of 6" in text
    monkeypatch.undo()
    verified = CliRunner().invoke(app, ["verify", run])
    assert (verified.exit_code, f"{len(steps(run))} of {len(steps(run))} whole" in verified.output) == (0, True)
    assert prune(run, "--yes", "--last", 1)[0] == 0
    assert steps(run) == [6]


def test_a_deletion_that_fails_is_told(run, monkeypatch):
    from resume_core.storage.local import LocalStore

    def refuse(store, key):
        raise PermissionError(13, "Permission denied", key)

    monkeypatch.setattr(LocalStore, "delete", refuse)
    code, text = prune(run, "--yes", "--last", 5)
    assert (code, "could not be deleted" in text, "0 deleted, of 2" in text) == (1, True, True)


def test_a_run_that_was_heard_of_just_now_is_named(run):
    assert "it may be training" not in prune(run, "--dry-run")[1]  # it has ended, and said so
    walk = Walk(Ranks(), {})
    session = Session(walk, run, save=SaveEvery(steps=1, minutes=None), keep=Keep(last=9))
    restored = session.start(7)
    session.begin(restored.progress)
    session.boundary(Progress(step=7, batch=7))
    session._history._wait()
    assert "it may be training" in prune(run, "--dry-run")[1]
    session.end()


def test_a_directory_without_a_run(tmp_path):
    code, text = prune(tmp_path, "--yes")
    assert (code, "nothing was pruned" in text) == (2, True)


def test_what_another_run_has_in_the_directory_stays_and_is_listed_with_the_reason(tmp_path):
    run = trained(str(tmp_path / "run"), 2, Keep(last=1))
    trained(run, 1, Keep(last=1), resume="never")
    code, text = prune(run, "--dry-run")
    assert (code, "nothing to delete" in text) == (0, True)
    (row,) = [line for line in text.splitlines() if "step-000000002" in line]
    assert row.startswith("attempt-0001")
    assert "of another run" in row
    assert steps(run) == [2, 1]
    found = looked(run, "--dry-run")
    assert [one["path"].rpartition("/")[2] for one in found["off_line"]] == ["step-000000002"]
    assert [one["path"].rpartition("/")[2] for one in found["stays"]] == ["step-000000001"]


def test_what_a_run_went_back_behind_is_listed_until_it_goes(tmp_path):
    run = trained(str(tmp_path / "run"), 4, Keep(last=9))
    trained(run, 3, Keep(last=9), resume="step 2")
    code, text = prune(run, "--dry-run", "--last", 2)
    assert code == 0
    for step in (3, 4):
        (row,) = [line for line in text.splitlines() if f"step-00000000{step} " in line and "attempt-0001" in line]
        assert "it goes once attempt-0002" in row
        assert "has 2 of its own" in row
    assert looked(run, "--dry-run", "--last", 1)["off_line"] == []
    assert prune(run, "--yes", "--last", 1)[0] == 0
    assert steps(run) == [3]


def test_a_line_that_cannot_be_followed_is_the_reason_why_others_stay(tmp_path):
    run = trained(str(tmp_path / "run"), 2, Keep(last=9))
    trained(run, 4, Keep(last=9))
    trained(run, 5, Keep(last=9), resume="step 3")
    next(Path(run).glob("attempt-0001-*/attempt.json")).write_bytes(b"{}")
    found = looked(run, "--dry-run", "--last", 1)
    assert {one["why"] for one in found["off_line"]} == {"the line cannot be read to its end, and it may be on it"}
