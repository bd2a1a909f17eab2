"""The callback that every Trainer gets from the environment."""

from __future__ import annotations

import subprocess
import sys

import lightning.pytorch as L
import pytest
from small import QUIET, Net, make_loader

from lightning_resume import ResumeCallback, SaveEvery
from lightning_resume._installed import InstalledResumeCallback


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch):
    for name in ("EXACT_RESUME_DIR", "EXACT_RESUME_STEPS", "EXACT_RESUME_MINUTES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(InstalledResumeCallback, "_num_begun", 0)


def make(tmp_path, *callbacks, epochs=1):
    return L.Trainer(**QUIET | {"max_epochs": epochs, "default_root_dir": str(tmp_path)}, callbacks=[*callbacks])


def resume_callbacks(trainer):
    return [callback for callback in trainer.callbacks if isinstance(callback, ResumeCallback)]


def test_without_the_variable_a_trainer_gets_nothing(tmp_path, entry_point):
    assert resume_callbacks(make(tmp_path)) == []


def test_with_it_a_run_goes_on_without_a_line_of_code(tmp_path, entry_point, monkeypatch, messages):
    monkeypatch.setenv("EXACT_RESUME_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("EXACT_RESUME_STEPS", "2")
    make(tmp_path).fit(Net(), make_loader())
    monkeypatch.setattr(InstalledResumeCallback, "_num_begun", 0)  # as in a new process
    trainer = make(tmp_path, epochs=2)
    trainer.fit(Net(), make_loader())
    assert trainer.global_step == 8
    assert resume_callbacks(trainer)[0]._options["save"] == SaveEvery(steps=2, minutes=None)
    assert any("resumed at step 4" in message for message in messages())


def test_a_callback_of_the_users_own_wins(tmp_path, entry_point, monkeypatch):
    monkeypatch.setenv("EXACT_RESUME_DIR", str(tmp_path / "installed"))
    make(tmp_path, ResumeCallback(tmp_path / "own")).fit(Net(), make_loader())
    assert (tmp_path / "own").exists()
    assert not (tmp_path / "installed").exists()


def test_a_second_trainer_of_a_script_is_a_run_of_its_own(tmp_path, entry_point, monkeypatch):
    monkeypatch.setenv("EXACT_RESUME_DIR", str(tmp_path / "run"))
    make(tmp_path).validate(
        type("N", (Net,), {"validation_step": lambda *a: None})(), make_loader(shuffle=False), verbose=False
    )
    for _ in range(2):
        net = Net()
        make(tmp_path).fit(net, make_loader())
        assert net.num_steps == 4
    assert sorted(p.name.split("-")[0] for p in (tmp_path / "run").iterdir()) == ["attempt", "trainer"]


def test_a_trainer_that_failed_leaves_its_place_to_the_next_try(tmp_path, entry_point, monkeypatch, messages):
    monkeypatch.setenv("EXACT_RESUME_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("EXACT_RESUME_STEPS", "1")

    class Fails(Net):
        def on_train_epoch_end(self):
            raise RuntimeError("once")

    with pytest.raises(RuntimeError, match="once"):
        make(tmp_path).fit(Fails(), make_loader())
    make(tmp_path).fit(Net(), make_loader())
    assert any("resumed at step 4" in message for message in messages())


@pytest.mark.parametrize("name", ["EXACT_RESUME_STEPS", "EXACT_RESUME_MINUTES"])
def test_a_setting_that_is_no_number_is_named(tmp_path, entry_point, monkeypatch, name):
    monkeypatch.setenv("EXACT_RESUME_DIR", str(tmp_path / "run"))
    monkeypatch.setenv(name, "often")
    with pytest.raises(ValueError, match=f"{name}.*often"):
        make(tmp_path)


def test_the_entry_point_imports_next_to_nothing_while_it_is_off():
    code = "import sys, lightning_resume._entry_point as e; assert e.callbacks() == []; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "numpy", "lightning", "resume_core", "lightning_resume.callback"} & set(found)
