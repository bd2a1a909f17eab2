"""``ResumePlugin()`` with folders that Accelerate numbers."""

from __future__ import annotations

import os

import pytest
from accelerate.utils import ProjectConfiguration
from own_states import Run

from resume_core.errors import CorruptCheckpointError


def numbered(tmp_path, **options):
    return ProjectConfiguration(str(tmp_path), automatic_checkpoint_naming=True, **options)


def names(tmp_path):
    return sorted(os.listdir(tmp_path / "checkpoints"))


def test_folders_are_numbered_on_and_the_limit_is_kept(tmp_path):
    for start in range(3):
        run = Run(project=numbered(tmp_path, total_limit=2), seed=start)
        if start:
            run.accelerator.load_state()
        for _ in range(2):
            run.accelerator.save_state()
    assert names(tmp_path) == ["checkpoint_4", "checkpoint_5"]


def test_an_older_folder_may_be_gone_on_from_beside_newer_ones(tmp_path):
    run = Run(project=numbered(tmp_path))
    for _ in range(3):
        run.accelerator.save_state()
    run = Run(project=numbered(tmp_path))
    run.accelerator.load_state(tmp_path / "checkpoints" / "checkpoint_0")
    run.accelerator.save_state()
    assert names(tmp_path) == [f"checkpoint_{number}" for number in range(4)]


def test_a_number_that_the_user_gives_is_kept(tmp_path):
    run = Run(project=numbered(tmp_path, iteration=7))
    run.accelerator.save_state()
    run.accelerator.save_state()
    assert names(tmp_path) == ["checkpoint_7", "checkpoint_8"]


def test_a_new_run_does_not_write_over_what_is_there(tmp_path):
    Run(project=numbered(tmp_path)).accelerator.save_state()
    with pytest.raises(ValueError, match="already exists"):
        Run(project=numbered(tmp_path)).accelerator.save_state()


def test_what_is_there_stays_until_the_next_one_is_complete(tmp_path):
    run = Run(project=numbered(tmp_path, total_limit=1))
    run.accelerator.save_state()
    seen = []
    run.accelerator.register_save_state_pre_hook(lambda *_: seen.extend(names(tmp_path)))
    run.accelerator.save_state()
    assert seen == ["checkpoint_0", "checkpoint_1"]
    assert names(tmp_path) == ["checkpoint_1"]


def test_the_newest_whole_one_is_taken_and_those_passed_over_are_named(tmp_path, messages):
    run = Run(project=numbered(tmp_path))
    for done in range(3):
        run.counters.done = done
        run.accelerator.save_state()
    (tmp_path / "checkpoints" / "checkpoint_2" / "optimizer.bin").write_bytes(b"torn")
    (tmp_path / "checkpoints" / "checkpoint_3").mkdir()  # killed before it wrote anything
    run = Run(project=numbered(tmp_path), seed=9)
    run.accelerator.load_state()
    assert run.counters.done == 1
    assert [m for m in messages() if "checkpoint_2 is passed over" in m and "optimizer.bin" in m]
    run.accelerator.save_state()
    assert names(tmp_path)[-1] == "checkpoint_4"


def test_without_any_whole_one_nothing_is_loaded(tmp_path):
    Run(project=numbered(tmp_path)).accelerator.save_state()
    (tmp_path / "checkpoints" / "checkpoint_0" / "random_states_0.pkl").unlink()
    with pytest.raises(CorruptCheckpointError, match="random_states_0"):
        Run(project=numbered(tmp_path)).accelerator.load_state()


def test_a_folder_that_is_not_there_is_accelerates_own_error(tmp_path):
    with pytest.raises(ValueError, match="does not exist"):
        Run().accelerator.load_state(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="No input_dir"):
        Run().accelerator.load_state()
