"""The command line, as users type it."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import resume_core
from resume_core.cli import app


def invoke(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_the_demo_is_a_command_of_its_own():
    result = invoke("--help")
    assert result.exit_code == 0
    assert "demo" in result.output
    assert invoke("demo", "--help").exit_code == 0


def test_the_version_is_printed():
    result = invoke("--version")
    assert result.exit_code == 0
    assert result.output == f"exact-resume {resume_core.__version__}\n"


def test_an_unknown_command_is_a_usage_error():
    assert invoke("frobnicate").exit_code == 2


@pytest.mark.parametrize("arguments", [("--plugin", "maybe"), ("--epochs", 0), ("--epochs", 1, "--kills", 2)])
def test_a_value_that_makes_no_sense_is_a_usage_error(arguments, tmp_path):
    result = invoke("demo", "--out", tmp_path, *arguments)
    assert result.exit_code == 2
    assert list(tmp_path.iterdir()) == []


def test_a_missing_extra_is_named_in_one_line(monkeypatch, tmp_path):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "sklearn" else find(name))
    result = invoke("demo", "--out", tmp_path)
    assert result.exit_code == 2
    assert result.output == 'the demo needs scikit-learn: pip install "exact-resume[demo]"\n'


def test_the_command_line_itself_imports_nothing_heavy():
    # the package above it is stood in for: what that imports is not the command line's doing
    code = (
        "import importlib.util, sys, types; spec = importlib.util.find_spec('resume_core');"
        "parent = types.ModuleType('resume_core'); parent.__path__ = spec.submodule_search_locations;"
        "sys.modules['resume_core'] = parent; import resume_core.cli;"
        "print([name for name in ('torch', 'numpy', 'lightning', 'sklearn', 'matplotlib') if name in sys.modules])"
    )
    root = Path(resume_core.__file__).parents[1]
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root)
    assert found.stdout == "[]\n"


def test_the_demo_ends_in_the_same_bits(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = invoke("demo", "--epochs", 2, "--kills", 1)
    assert result.exit_code == 0, result.output
    out = tmp_path / "demo-out"
    figures = json.loads((out / "demo.json").read_text())
    assert figures["identical"] is True
    assert figures["interrupted"]["samples_missed"] == figures["interrupted"]["samples_repeated"] == 0
    assert figures["interrupted"]["batches_done_again"] >= 10
    assert figures["interrupted"]["accuracy"] > 0.7
    assert "resumed at step" in (out / "interrupted" / "start-2.log").read_text()
    assert (out / "demo.png").exists()
    assert "Warning" not in result.output
    assert [path.name for path in tmp_path.iterdir()] == ["demo-out"]


@pytest.mark.slow
def test_stock_lightning_repeats_and_misses_samples(tmp_path):
    result = invoke("demo", "--epochs", 2, "--kills", 1, "--plugin", "off", "--out", tmp_path)
    assert result.exit_code == 1, result.output
    assert "expected of stock Lightning" in " ".join(result.output.split())
    figures = json.loads((tmp_path / "demo.json").read_text())
    assert figures["interrupted"]["samples_missed"] > 0
    assert figures["interrupted"]["samples_repeated"] > 0
    assert figures["interrupted"]["parameters"] != figures["uninterrupted"]["parameters"]
