"""``ResumePlugin()`` at the edges: damage, folders of others, changed runs, scripts that save or load elsewhere."""

from __future__ import annotations

import os
import random
import shutil

import accelerate
import pytest
import torch
from accelerate import Accelerator
from own_states import NUM_BATCHES, Run, assert_same, saving_at

from accelerate_resume import Changes, Keep, ResumePlugin, SaveEvery
from resume_core.errors import ConfigChangedError, CorruptCheckpointError, ResumeError

# ---- what is in the folder


def test_a_file_that_is_missing_or_torn_is_refused_before_anything_is_loaded(tmp_path):
    saving_at(3, tmp_path)
    names = [str(p.relative_to(tmp_path / "state")) for p in (tmp_path / "state").rglob("*") if p.is_file()]
    assert {"model.safetensors", "optimizer.bin", "random_states_0.pkl"} < set(names)
    for name in names:
        for how in ("missing", "torn"):
            folder = tmp_path / f"{how}-{os.path.basename(name)}"
            shutil.copytree(tmp_path / "state", folder)
            (folder / name).unlink() if how == "missing" else (folder / name).write_bytes(b"torn")
            run = Run()
            before = run.weights
            with pytest.raises(CorruptCheckpointError, match=os.path.basename(name)):
                run.accelerator.load_state(folder)
            assert torch.equal(run.weights, before)


def test_a_save_that_did_not_end_is_refused(tmp_path):
    class Fails:
        def state_dict(self):
            raise RuntimeError("the user's")

        def load_state_dict(self, state):
            raise AssertionError

    run = Run()
    run.accelerator.register_for_checkpointing(Fails())
    with pytest.raises(RuntimeError, match="the user's"):
        run.accelerator.save_state(tmp_path / "state")
    with pytest.raises(CorruptCheckpointError, match="was not finished"):
        Run().accelerator.load_state(tmp_path / "state")


def test_a_folder_that_was_completed_loads_with_accelerate_alone(tmp_path):
    whole = saving_at(10, tmp_path)
    stock = Run(plugin=False, seed=9)
    stock.accelerator.load_state(tmp_path / "state")
    assert_same(stock, whole)


def test_a_folder_of_accelerate_alone_loads_as_it_does_with_one_warning(tmp_path, messages):
    stock = Run(plugin=False)
    stock.train_epoch(lambda done: stock.accelerator.save_state(tmp_path / "state") if done == 3 else None)
    draws = []
    for plugin in (False, True):
        run = Run(plugin=plugin, seed=9)
        run.accelerator.load_state(str(tmp_path / "state"))
        draws.append([run.weights.tolist(), torch.rand(3).tolist(), random.random()])
    assert draws[0] == draws[1]
    (warning,) = [m for m in messages() if "without ResumePlugin" in m]
    assert "positions in loaders" in warning
    for _ in run.resume.epochs(1):
        run.train_epoch()
    assert len(run.seen) == NUM_BATCHES


def test_moments_keep_their_type(tmp_path):
    """``load_state_dict`` of torch casts them to that of their parameters, and so does ``load_state``."""
    whole = Run(dtype=torch.bfloat16)
    whole.train_epoch()
    for state in whole.optimizer.state.values():
        state["exp_avg"] = state["exp_avg"].float() + 1e-7
    whole.accelerator.save_state(tmp_path / "state")
    run = Run(dtype=torch.bfloat16)
    run.accelerator.load_state(tmp_path / "state")
    assert [m.dtype for m in run.moments] == [m.dtype for m in whole.moments]
    assert all(torch.equal(one, other) for one, other in zip(run.moments, whole.moments, strict=True))


def test_what_no_checkpoint_can_hold_is_named_and_the_folder_written_as_accelerate_does(tmp_path, messages):
    run = Run()
    run.counters.done = object()
    for _ in range(2):
        run.accelerator.save_state(tmp_path / "state")
    assert len([m for m in messages() if "counters.done" in m]) == 1
    again = Run(seed=9)
    again.accelerator.load_state(tmp_path / "state")
    assert torch.equal(again.weights, run.weights)
    assert [m for m in messages() if "state was saved with something in pieces.rank.counters.done" in m]


def test_saving_moves_no_random_number(tmp_path):
    draws = []
    for saves in (False, True):
        run = Run()
        run.accelerator.register_save_state_pre_hook(lambda *_: torch.rand(3))
        if saves:
            run.accelerator.save_state(tmp_path / "state")
        draws.append(torch.rand(1))
    assert draws[0] == draws[1]


# ---- changed runs


def test_a_changed_run_is_refused_before_anything_is_loaded(tmp_path):
    saving_at(3, tmp_path)
    for change, name in (({"lr": 0.2}, r"optimizer\.0\.lr"), ({"seed": 8, "changes": None}, "seed")):
        run = Run(**change)
        before = run.weights
        with pytest.raises(ConfigChangedError, match=name):
            run.accelerator.load_state(tmp_path / "state")
        assert torch.equal(run.weights, before)
    assert Run(lr=0.2, changes=Changes(allow=("optimizer",))).accelerator.load_state(tmp_path / "state") is None


def test_another_number_of_registered_objects_is_refused_before_anything_is_loaded(tmp_path):
    saving_at(3, tmp_path)
    run = Run()
    run.accelerator.register_for_checkpointing(torch.nn.Linear(1, 1))
    with pytest.raises(ConfigChangedError, match="registered"):
        run.accelerator.load_state(tmp_path / "state")


@pytest.mark.parametrize("arguments", [{"save": SaveEvery()}, {"keep": Keep()}, {"resume": "must"}, {"scratch": "x"}])
def test_what_needs_a_directory_is_refused_without_one(arguments):
    with pytest.raises(ValueError, match=next(iter(arguments))):
        ResumePlugin(**arguments)


def test_a_version_of_accelerate_that_lacks_what_is_needed_is_refused_with_its_name(monkeypatch):
    accelerator = Accelerator(cpu=True)
    vars(accelerator).pop("project_configuration")
    with pytest.raises(ResumeError, match=rf"Accelerate {accelerate.__version__} lacks .*project_configuration"):
        ResumePlugin().attach(accelerator)


def test_switched_off_nothing_is_taken_over(tmp_path, monkeypatch):
    monkeypatch.setenv("EXACT_RESUME", "off")
    run = Run()
    run.accelerator.save_state(tmp_path / "state")
    assert not (tmp_path / "state" / "exact_resume").exists()
