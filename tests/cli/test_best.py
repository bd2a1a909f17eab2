"""The name ``best``: the checkpoint that the run's own ``Keep(best=)`` keeps."""

from __future__ import annotations

import math

import pytest
from looking import folder, said, told
from test_verify import trained
from typer.testing import CliRunner
from walks import Walk

from resume_core import Keep
from resume_core.cli import app
from resume_core.errors import CheckpointNotFoundError
from resume_core.naming import resolve
from resume_core.storage import Lineage, open_store

LOSSES = [math.inf, 3.0, 1.0, 1.0, 2.0]  # as it stands at steps 0 to 4


class Judged(Walk):
    """A walk that is judged at each step."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.num_steps = 0

    def step(self):
        super().step()
        self.num_steps += 1

    @property
    def metrics(self):
        return {"val_loss": LOSSES[self.num_steps], "other": 0.5}


def judged(directory, monkeypatch, **keep):
    monkeypatch.setattr("test_verify.Walk", Judged)
    return trained(str(directory), 4, keep=Keep(**{"last": 9} | keep))


@pytest.fixture
def run(tmp_path, monkeypatch):
    return judged(tmp_path / "run", monkeypatch, best="val_loss")


def test_it_is_the_first_of_the_best_value(run, tmp_path):
    assert told("show", run, "best", code=0)["path"].endswith("step-000000002")
    assert "weights equal" in said("diff", f"{run}/step-2", "best")[1]
    assert "1 of 1 whole" in said("verify", run, "best")[1]
    out = tmp_path / "best.safetensors"
    found = CliRunner().invoke(app, ["export", run, "best", str(out), "--format", "safetensors"])
    assert found.exit_code == 0, found.output
    assert "step-000000002" in found.output


def test_the_other_way_round_it_is_the_greatest_and_no_infinity(tmp_path, monkeypatch):
    run = judged(tmp_path / "run", monkeypatch, best="val_loss", mode="max")
    assert told("show", run, "best", code=0)["path"].endswith("step-000000001")


def test_ls_shows_the_values_that_it_goes_by(run):
    listed = told("ls", run, code=0)
    assert listed["best"] == "val_loss"
    assert [one["metric"] for one in listed["attempts"][0]["checkpoints"]] == [2.0, 1.0, 1.0, 3.0, None]
    heading, *_ = [line for line in said("ls", run)[1].splitlines() if "step" in line and "epoch" in line]
    assert "val_loss" in heading


def test_without_a_rule_it_says_which_metrics_there_are(tmp_path, monkeypatch):
    run = judged(tmp_path / "run", monkeypatch)
    code, text = said("show", run, "best")
    assert code == 2
    assert "its Keep(...) has no best=. Metrics in its checkpoints: other, val_loss." in " ".join(text.split())
    assert told("ls", run, code=0)["best"] is None


def test_a_metric_that_no_checkpoint_has_says_so(tmp_path, monkeypatch):
    run = judged(tmp_path / "run", monkeypatch, best="val_los")
    text = " ".join(said("show", run, "best")[1].split())
    assert "none has a finite value of it. Metrics in its checkpoints: other, val_loss." in text


def test_weights_alone_are_shown_and_nothing_goes_on_from_them(tmp_path, monkeypatch):
    run = judged(tmp_path / "run", monkeypatch, last=1, best="val_loss", thin_after=1)
    assert not told("show", run, "best", code=0)["can_continue"]
    with pytest.raises(CheckpointNotFoundError, match="the weights alone are left"):
        resolve(Lineage(open_store(run)), "best")
    assert not (folder(run, 2) / "training.safetensors").exists()


def test_a_folder_of_the_users_that_is_called_so_is_meant_by_its_path(run, tmp_path, monkeypatch):
    other = judged(tmp_path / "best", monkeypatch, best="val_loss")
    monkeypatch.chdir(tmp_path)
    assert "weights equal" in said("diff", run, "best")[1]
    assert told("show", "best", code=0)["url"].endswith(other)
