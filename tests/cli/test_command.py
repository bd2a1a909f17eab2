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
from resume_core.cli import DemoFramework, ExportFormat, app
from resume_core.cli.demo.frameworks import FRAMEWORKS
from resume_core.cli.export.formats import FORMATS, WEIGHTS


def invoke(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_each_command_has_a_page_of_help():
    result = invoke("--help")
    assert result.exit_code == 0
    for command in ("demo", "diff", "export", "ls", "plan", "prune", "report", "show", "verify"):
        assert command in result.output
        assert invoke(command, "--help").exit_code == 0


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


OTHERS = [pytest.param(name, marks=pytest.mark.slow) for name in ("accelerate", "trainer")]  # .ci/run runs these, too
TITLES = {"lightning": "Lightning", "accelerate": "Accelerate", "trainer": "transformers.Trainer"}


@pytest.mark.parametrize("framework", ["lightning", *OTHERS])
def test_the_demo_ends_in_the_same_bits(tmp_path, monkeypatch, framework):
    monkeypatch.chdir(tmp_path)
    result = invoke("demo", "--framework", framework, "--epochs", 2, "--kills", 1)
    assert result.exit_code == 0, result.output
    assert f"{TITLES[framework]} with " in result.output
    out = tmp_path / "demo-out"
    figures = json.loads((out / "demo.json").read_text())
    assert figures["identical"] is True
    assert figures["interrupted"]["samples_missed"] == figures["interrupted"]["samples_repeated"] == 0
    assert figures["interrupted"]["batches_done_again"] >= 10
    assert figures["interrupted"]["accuracy"] > (0.2 if framework == "trainer" else 0.7)
    assert "resumed at step" in (out / "interrupted" / "start-2.log").read_text()
    assert (out / "demo.png").exists()
    assert "Warning" not in result.output
    assert [path.name for path in tmp_path.iterdir()] == ["demo-out"]


@pytest.mark.slow
@pytest.mark.parametrize("framework", TITLES)
def test_a_framework_alone_ends_in_other_bits(tmp_path, framework):
    options = ("--framework", framework, "--epochs", 2, "--kills", 1, "--plugin", "off")
    result = invoke("demo", *options, "--out", tmp_path)
    assert result.exit_code == 1, result.output
    assert f"expected of stock {TITLES[framework]}" in " ".join(result.output.split())
    figures = json.loads((tmp_path / "demo.json").read_text())
    missed = figures["interrupted"]["samples_missed"], figures["interrupted"]["samples_repeated"]
    assert all(missed) or framework == "trainer"  # which takes the right samples, augmented otherwise
    assert figures["interrupted"]["parameters"] != figures["uninterrupted"]["parameters"]


def test_each_framework_of_the_demo_has_its_words():
    assert [each.value for each in DemoFramework] == list(FRAMEWORKS)
    assert all(importlib.util.find_spec(each.module) is not None for each in FRAMEWORKS.values())
    assert [each.value for each in ExportFormat] == [*FORMATS, WEIGHTS]
