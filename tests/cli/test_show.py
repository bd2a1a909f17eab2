"""What ``exact-resume show`` says of one checkpoint."""

from __future__ import annotations

import importlib

import crafted
import pytest
from looking import folder, said, told
from test_verify import trained
from typer.testing import CliRunner

from resume_core import Keep
from resume_core.cli import app
from resume_core.cli.tensors import _item_bytes
from resume_core.image.dtypes import BY_NAME


def show(*arguments):
    return said("show", *arguments)


def shown(*arguments, code=0):
    return told("show", *arguments, code=code)


@pytest.fixture
def run(tmp_path):
    return trained(str(tmp_path / "run"))


def test_the_newest_of_a_run_with_its_parts_and_where_it_was_taken(run):
    code, text = show(run)
    assert code == 0
    for words in (
        "step-000000003",
        "training can go on from it",
        "step 3, batch 3",
        "weights and buffers",
        "optimizer",
    ):
        assert words in text
    found = shown(run)
    assert found["can_continue"]
    sizes = {path.name: path.stat().st_size for path in folder(run, 3).iterdir() if path.name != "manifest.json"}
    assert {name for part in found["parts"] for name in part["files"]} == set(sizes)
    assert found["size_bytes"] == sum(sizes.values()) == sum(part["size_bytes"] for part in found["parts"])
    assert found["weights_bytes"] == sizes["model.safetensors"]
    assert found["weights_files"] == round(found["size_bytes"] / found["weights_bytes"], 3)
    assert found["num_parameters"] > 0
    assert found["header"]["provenance"]["packages"]["torch"]


def test_one_by_its_name(run):
    attempt = folder(run, 1).parent.name
    assert shown(f"{run}/{attempt}/step-000000001")["header"]["progress"]["step"] == 1


def test_one_of_which_the_weights_are_left(tmp_path):
    run = trained(str(tmp_path / "run"), 7, Keep(last=2, every_steps=3, thin_after=2))
    url = f"{run}/{folder(run, 3).parent.name}/step-000000003"
    code, text = show(url)
    assert code == 0
    assert "weights only: training cannot go on from it" in text
    assert not shown(url)["can_continue"]


@pytest.mark.parametrize("name", ["training.safetensors", "rank-00000.json", "training.json"])
def test_a_part_that_is_missing_or_short(run, name):
    path = folder(run, 3) / name
    path.write_bytes(path.read_bytes()[:-1])
    code, text = show(run)
    assert (code, "training cannot go on from it" in text, name in text) == (1, True, True)
    path.unlink()
    found = shown(run, code=1)
    assert any("missing" in problem for problem in found["problems"])


def test_one_that_the_run_deletes_meanwhile_is_not_called_damaged(run, monkeypatch):
    module = importlib.import_module("resume_core.cli.show.facts")
    found = module._problems

    def late(source):
        for name in ("manifest.json", "model.safetensors"):
            (folder(run, 3) / name).unlink()
        return found(source)

    monkeypatch.setattr(module, "_problems", late)
    code, text = show(run)
    assert (code, "was deleted while it was read" in text, "damaged" in text) == (2, True, False)


def test_one_that_is_thinned_meanwhile_is_not_called_damaged(run, monkeypatch):
    module = importlib.import_module("resume_core.cli.show.facts")
    found = module._problems

    def late(source):
        (folder(run, 3) / "manifest.json").rename(folder(run, 3) / "weights.json")
        (folder(run, 3) / "training.safetensors").unlink()
        return found(source)

    monkeypatch.setattr(module, "_problems", late)
    assert show(run)[0] == 2


def test_a_manifest_that_cannot_be_used(run):
    folder(run, 3).joinpath("manifest.json").write_bytes(b"{}")
    code, text = show(run)
    assert (code, "torn or was altered" in text) == (1, True)


def test_every_tier_is_named(tmp_path):
    directory, scratch = str(tmp_path / "run"), str(tmp_path / "scratch")
    trained(directory, scratch=scratch)
    assert shown(directory, "--scratch", scratch)["tiers"] == [scratch, directory]


def test_the_size_of_each_type_is_told_by_its_name():
    for name, each in BY_NAME.items():
        assert _item_bytes(name) == each.dtype.itemsize


def test_names_are_no_markup(tmp_path):
    assert "[red]run" in show(trained(str(tmp_path / "[red]run")))[1]


@pytest.mark.parametrize(
    "changes",
    [
        {"timings": {"stage_s": "fast", "write_s": None}},
        {"provenance": {"git": {"commit": 5}, "packages": [], "command": 3}},
        {"metrics": {"loss": [1]}, "time": 5, "reason": {}, "progress": 3},
        {"finished": 4, "timings": [1], "metrics": [2], "provenance": "x"},
    ],
)
@pytest.mark.parametrize("command", ["show", "ls", "diff", "report", "prune", "plan"])
def test_a_header_that_no_session_writes_is_told_by_every_command(run, tmp_path, command, changes):
    path = folder(run, 3) / "manifest.json"
    crafted.change(path, "manifest", header=crafted.fields(path)["header"] | changes)
    more = {"diff": [run], "report": ["-o", str(tmp_path / "report.html")], "prune": ["--dry-run"]}
    found = CliRunner().invoke(app, [command, run, *more.get(command, [])], env={"COLUMNS": "160"})
    assert found.exception is None or isinstance(found.exception, SystemExit), found.exception
    assert found.exit_code in (0, 1, 2)


def test_a_flipped_byte_is_no_business_of_show_and_it_says_whose(run):
    path = folder(run, 3) / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    code, text = show(run)
    assert code == 0
    assert "sizes agree; `exact-resume verify` reads the bytes" in text
    assert "whole" not in text
    assert "to the last bit" not in text
