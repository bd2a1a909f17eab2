"""`Keep` by epochs and metric, and a scratch, from a Trainer's point of view."""

from __future__ import annotations

import json

import lightning.pytorch as L
import pytest
import torch
from small import QUIET, Net, make_loader

from lightning_resume import Keep, ResumeCallback, SaveEvery

EVERY = SaveEvery(steps=1, minutes=None)


class Validates(Net):
    """A validation loss that is best in the second of four epochs, and no number in the third."""

    losses = (3.0, 1.0, float("nan"), 2.0)

    def training_step(self, batch, batch_idx):
        self.log("train_loss", loss := super().training_step(batch, batch_idx))
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", torch.tensor(self.losses[self.current_epoch]))

    def train_dataloader(self):
        return make_loader()

    def val_dataloader(self):
        return make_loader(num_samples=4, shuffle=False)


def manifests(directory):
    found = {}
    for path in sorted(directory.glob("*/step-*/manifest.json")):
        found[path.parent.name] = json.loads(path.read_text())["header"]
    return found


def test_metrics_are_recorded_as_they_stand_at_the_boundary(fit, tmp_path):
    fit(
        net=Validates(),
        max_epochs=3,
        callback=ResumeCallback(tmp_path / "run", save=EVERY, keep=Keep(last=99)),
        num_sanity_val_steps=0,
    )
    found = manifests(tmp_path / "run")
    assert found["step-000000000"]["metrics"] == {}
    assert "val_loss" not in found["step-000000003"]["metrics"]
    assert found["step-000000003"]["metrics"]["train_loss"] > 0
    assert [found[f"step-{step:09d}"]["metrics"]["val_loss"] for step in (4, 7, 8, 12)] == [3.0, 3.0, 1.0, "nan"]
    assert [name for name, header in found.items() if header["progress"]["ends_epoch"]] == [
        "step-000000004",
        "step-000000008",
        "step-000000012",
        "step-000000012.2",
    ]


def test_the_best_by_a_metric_and_the_milestones_stay(fit, tmp_path):
    keep = Keep(last=1, every_epochs=3, best="val_loss")
    fit(net=Validates(), max_epochs=4, callback=ResumeCallback(tmp_path / "run", save=EVERY, keep=keep))
    names = ("step-000000008", "step-000000012", "step-000000016", "step-000000016.2")
    assert tuple(manifests(tmp_path / "run")) == names


def test_a_metric_that_is_never_logged_is_said_once(fit, tmp_path, messages):
    keep = Keep(best="val_los")
    fit(net=Validates(), max_epochs=3, callback=ResumeCallback(tmp_path / "run", save=EVERY, keep=keep))
    (said,) = [message for message in messages() if "val_los'" in message]
    assert "train_loss, val_loss" in said


def test_a_run_goes_on_from_the_scratch_and_says_so(fit, tmp_path, messages):
    def callback():
        return ResumeCallback(tmp_path / "run", scratch=tmp_path / "fast", save=EVERY)

    fit(max_epochs=1, callback=callback())
    net, _ = fit(max_epochs=2, callback=callback())
    assert net.num_steps == 4
    assert any("resumed at step 4" in m and f"({tmp_path / 'fast'})" in m for m in messages())
    assert len(list((tmp_path / "fast").glob("*/step-*"))) <= 2
    whole, _ = fit(max_epochs=2, callback=ResumeCallback(tmp_path / "whole", save=EVERY))
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), whole.parameters(), strict=True))


def test_both_come_from_files_of_configuration(tmp_path):
    hydra = pytest.importorskip("hydra.utils")
    omegaconf = pytest.importorskip("omegaconf")
    keep = {"last": 2, "every_steps": 4, "best": "val_loss", "mode": "max", "thin_after": 5}
    config = {"_target_": "lightning_resume.ResumeCallback", "directory": str(tmp_path / "run")}
    made = hydra.instantiate(omegaconf.OmegaConf.create(config | {"scratch": str(tmp_path / "fast"), "keep": keep}))
    assert made._options["keep"] == Keep(**keep)
    assert made._options["scratch"] == str(tmp_path / "fast")
    L.Trainer(**QUIET, max_epochs=1, callbacks=[made], default_root_dir=str(tmp_path)).fit(Validates())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_both_come_from_the_command_line(tmp_path):
    cli = pytest.importorskip("lightning.pytorch.cli")
    pytest.importorskip("jsonargparse")
    quiet = [f"--trainer.{name}={str(value).lower()}" for name, value in QUIET.items()]
    arguments = [
        "--seed_everything=7",
        *quiet,
        "--trainer.max_epochs=1",
        "--trainer.callbacks=lightning_resume.ResumeCallback",
        f"--trainer.callbacks.directory={tmp_path / 'run'}",
        f"--trainer.callbacks.scratch={tmp_path / 'fast'}",
        "--trainer.callbacks.keep.best=val_loss",
        "--trainer.callbacks.keep.mode=max",
        "--trainer.callbacks.keep.every_epochs=2",
    ]
    trainer = cli.LightningCLI(Validates, args=["fit", *arguments], save_config_callback=None).trainer
    options = next(c for c in trainer.callbacks if isinstance(c, ResumeCallback))._options
    assert options["keep"] == Keep(best="val_loss", mode="max", every_epochs=2)
    assert options["scratch"] == str(tmp_path / "fast")
    assert len(list((tmp_path / "fast").glob("*/step-*/manifest.json"))) >= 1


def test_a_scratch_without_a_directory_is_refused(tmp_path):
    with pytest.raises(ValueError, match="scratch"):
        ResumeCallback(scratch=tmp_path)


def test_a_save_at_the_end_of_each_second_epoch(fit, tmp_path):
    fit(callback=ResumeCallback(tmp_path / "run", save=SaveEvery(minutes=None, epochs=2)), max_epochs=5)
    epoch = len(make_loader())
    saved = {int(path.parent.name[5:14]) for path in tmp_path.glob("run/*/*/manifest.json")}
    assert saved == {2 * epoch, 4 * epoch, 5 * epoch}  # the last three


def test_the_end_state_names_the_epoch_of_its_last_batch(fit, tmp_path):
    callback = ResumeCallback(tmp_path / "run", save=EVERY, keep=Keep(last=1, every_epochs=3))
    fit(net=Validates(), callback=callback, max_epochs=2)
    *_, end = manifests(tmp_path / "run").values()
    assert (end["reason"], end["progress"]["epoch"], end["progress"]["ends_epoch"]) == ("end", 1, True)
    fit(net=Validates(), callback=ResumeCallback(tmp_path / "run", save=EVERY, keep=Keep(last=1)), max_epochs=4)
    *_, end = manifests(tmp_path / "run").values()
    assert end["progress"]["epoch"] == 3
