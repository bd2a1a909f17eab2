"""What every plugin does with the arguments that all of them take."""

from __future__ import annotations

import pytest

from accelerate_resume import ResumePlugin, TrainerResumeCallback
from lightning_resume import ResumeCallback


@pytest.mark.parametrize("plugin", [ResumeCallback, ResumePlugin, TrainerResumeCallback])
def test_relative_paths_are_those_of_the_folder_in_which_the_plugin_is_made(tmp_path, monkeypatch, plugin):
    monkeypatch.chdir(tmp_path)
    made = plugin("run", scratch="near")
    monkeypatch.chdir("/")  # as a script does between making the plugin and training; Hydra's job.chdir for one
    assert (made._directory, made._options["scratch"]) == (str(tmp_path / "run"), str(tmp_path / "near"))
