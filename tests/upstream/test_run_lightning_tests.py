"""The comparison with Lightning's own tests, on a checkout of a few lines with the same layout."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("run_lightning_tests.py")
TESTS = {
    "loops/test_loops.py": """
import lightning.pytorch as L
from small import QUIET, Net, make_loader

def test_a_fit_of_two_epochs(tmp_path):
    trainer = L.Trainer(**QUIET, max_epochs=2, default_root_dir=tmp_path)
    trainer.fit(Net(), make_loader())
    assert trainer.global_step == 8

def test_that_fails_either_way():
    assert False
""",
    "callbacks/test_callbacks.py": """
import lightning.pytorch as L
import os
from small import QUIET

def test_that_counts_callbacks(tmp_path):
    assert len(L.Trainer(**QUIET, default_root_dir=tmp_path).callbacks) == 0, "one too many"

def test_that_nothing_is_left_behind(monkeypatch):
    monkeypatch.setenv("OWN", "1")
""",
    "checkpointing/test_checkpointing.py": "import pytest\n\n@pytest.mark.skip\ndef test_skipped():\n    pass\n",
}


def compare(checkout, *extra):
    command = [sys.executable, str(SCRIPT), str(checkout), "--", "-W", "ignore", *extra]
    paths = [str(Path(__file__).parents[1]), os.getcwd(), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture
def checkout(tmp_path):
    for name, text in TESTS.items():
        file = tmp_path / "checkout" / "tests" / "tests_pytorch" / name
        file.parent.mkdir(parents=True)
        file.write_text(text)
    return tmp_path / "checkout"


def test_what_differs_is_listed_with_both_outcomes_and_the_error(checkout, entry_point):
    ended = compare(checkout)
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert "5 tests without the callback, 5 with it, 1 that differ" in ended.stdout
    assert "test_that_counts_callbacks\n    passed -> failed: AssertionError: one too many" in ended.stdout


def test_a_folder_that_is_no_checkout_is_said_to_be_none(tmp_path, entry_point):
    ended = compare(tmp_path)
    assert ended.returncode == 2
    assert "a checkout of Lightning?" in ended.stderr
