"""The callback made from configuration files: LightningCLI with YAML, and Hydra."""

from __future__ import annotations

import lightning.pytorch as L
import pytest
from small import QUIET, Net, make_loader

from lightning_resume import Changes, Keep, ResumeCallback, SaveEvery

CONFIG = """
seed_everything: 7
trainer:
  max_epochs: {epochs}
  accelerator: cpu
  devices: 1
  logger: false
  enable_progress_bar: false
  enable_model_summary: false
  enable_checkpointing: false
  callbacks:
    - class_path: lightning_resume.ResumeCallback
      init_args:
        directory: {directory}
        save: {{steps: 2, minutes: null}}
        keep: {{last: 2}}
        changes: {{allow: [seed, data.0.sampler], otherwise: warn, sample_ids: [a, 7]}}
"""


class WithData(Net):
    def train_dataloader(self):
        return make_loader()


def command_line(*arguments):
    cli = pytest.importorskip("lightning.pytorch.cli")
    pytest.importorskip("jsonargparse")
    return cli.LightningCLI(WithData, args=["fit", *arguments], save_config_callback=None).trainer


def resume_callback(trainer):
    return next(callback for callback in trainer.callbacks if isinstance(callback, ResumeCallback))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_lightning_cli_makes_it_from_yaml_and_the_run_goes_on(tmp_path, messages):
    for epochs in (1, 2):
        file = tmp_path / "config.yaml"
        file.write_text(CONFIG.format(epochs=epochs, directory=tmp_path / "run"))
        trainer = command_line("--config", str(file))
        assert trainer.global_step == 4 * epochs
    options = resume_callback(trainer)._options
    assert options["save"] == SaveEvery(steps=2, minutes=None)
    assert options["keep"] == Keep(last=2)
    assert options["changes"] == Changes(allow=("seed", "data.0.sampler"), otherwise="warn", sample_ids=("a", "7"))
    assert any("resumed at step 4" in message for message in messages())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_lightning_cli_takes_single_fields_from_the_command_line(tmp_path):
    ids = tmp_path / "ids.txt"
    ids.write_text("a\nb\n")
    quiet = [f"--trainer.{name}={str(value).lower()}" for name, value in QUIET.items()]
    trainer = command_line(
        "--seed_everything=7",
        *quiet,
        "--trainer.max_epochs=1",
        "--trainer.callbacks=lightning_resume.ResumeCallback",
        f"--trainer.callbacks.directory={tmp_path / 'run'}",
        "--trainer.callbacks.save.steps=500",
        "--trainer.callbacks.keep.last=7",
        f"--trainer.callbacks.changes.sample_ids={ids}",
    )
    assert resume_callback(trainer)._options["changes"] == Changes(sample_ids=ids)
    assert resume_callback(trainer)._options["save"] == SaveEvery(steps=500)
    assert resume_callback(trainer)._options["keep"] == Keep(last=7)


@pytest.mark.parametrize("nested", ["plain", "targets"])
def test_hydra_makes_it_with_its_own_containers(tmp_path, nested):
    hydra = pytest.importorskip("hydra.utils")
    omegaconf = pytest.importorskip("omegaconf")
    policies = {
        "save": {"steps": 2, "minutes": None},
        "changes": {"allow": ["seed", "data.0"], "sample_ids": ["a", 7]},
        "keep": {"last": 2},
    }
    if nested == "targets":
        kinds = {"save": "SaveEvery", "changes": "Changes", "keep": "Keep"}
        policies = {name: {"_target_": f"lightning_resume.{kinds[name]}", **given} for name, given in policies.items()}
    config = omegaconf.OmegaConf.create(
        {"_target_": "lightning_resume.ResumeCallback", "directory": str(tmp_path / "run"), **policies}
    )
    callback = hydra.instantiate(config)
    assert callback._options["save"] == SaveEvery(steps=2, minutes=None)
    assert callback._options["changes"] == Changes(allow=("seed", "data.0"), sample_ids=["a", 7])
    assert callback._options["keep"] == Keep(last=2)
    L.Trainer(**QUIET, max_epochs=1, callbacks=[callback], default_root_dir=str(tmp_path)).fit(Net(), make_loader())
    assert len(list((tmp_path / "run").glob("*/step-*"))) == 3  # the last two, and the end
