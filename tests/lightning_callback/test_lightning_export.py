"""Checkpoints of a Lightning run, exported and given to stock Lightning."""

from __future__ import annotations

import io

import lightning.pytorch as L
import pytest
import torch
from lightning.pytorch.callbacks import EarlyStopping, EMAWeightAveraging
from omegaconf import OmegaConf
from small import QUIET, make_loader
from typer.testing import CliRunner

from lightning_resume import Keep, ResumeCallback, SaveEvery
from lightning_resume._framework import FitFramework
from resume_core.cli import app

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:lightning.*")


def export(url, out, *options, format="lightning", code=0):
    result = CliRunner().invoke(app, ["export", str(url), str(out), "--format", format, *options])
    assert result.exit_code == code, result.output
    return result.output


@pytest.fixture
def stock(monkeypatch):
    """What Lightning's own checkpoint holds when the callback saves after a batch: written and read by torch."""
    found, plain = {}, FitFramework.capture

    def capture(self):
        found.setdefault(self.progress().batch, dumped(self.trainer))
        return plain(self)

    monkeypatch.setattr(FitFramework, "capture", capture)
    return lambda batch: loaded(found[batch])


def dumped(trainer):
    file = io.BytesIO()
    torch.save(trainer._checkpoint_connector.dump_checkpoint(False), file)
    return file.getvalue()


def loaded(data):
    return torch.load(io.BytesIO(data), weights_only=True)


class AtEnd(L.Callback):
    """Saves where `ModelCheckpoint` does."""

    def on_train_epoch_end(self, trainer, module):
        self.found = dumped(trainer)


def same(one, two):
    """Whether two nested states are equal to the last bit, in their types and the order of their keys as well."""
    if type(one) is not type(two):
        return False
    if isinstance(one, torch.Tensor):
        return one.dtype == two.dtype and one.stride() == two.stride() and torch.equal(one, two)
    if isinstance(one, dict):
        beside = same(getattr(one, "_metadata", None), getattr(two, "_metadata", None))
        return beside and list(one) == list(two) and all(same(one[key], two[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(two) and all(map(same, one, two))
    return one == two


class Plain(L.LightningModule):
    def training_step(self, batch, batch_idx):
        loss = self.layers(batch[0]).pow(2).mean()
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), 0.01)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


class Deep(Plain):
    """Running statistics, tied weights, memory in another order, a module with a version of its own."""

    def __init__(self, width=4, rates=(0.1, 0.2), loss=None):
        super().__init__()
        self.save_hyperparameters()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(3, width), torch.nn.BatchNorm1d(width), Versioned(width), torch.nn.Linear(width, 1)
        )
        self.tied = self.layers[0]
        self.register_buffer("image", torch.rand(1, 3, 2, 2).to(memory_format=torch.channels_last))


class Versioned(torch.nn.Linear):
    _version = 3

    def __init__(self, width):
        super().__init__(width, width)

    def _load_from_state_dict(self, state_dict, prefix, local_metadata, *args):
        assert local_metadata["version"] == 3  # another one would have to be converted
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *args)


def train(fit, tmp_path, net=None, **trainer):
    keep = ResumeCallback(tmp_path / "run", save=SaveEvery(steps=1, minutes=None), keep=Keep(last=99))
    return fit(net=net or Deep(), callback=keep, **{"max_epochs": 2, **trainer})


def checkpoint_of(tmp_path, step):
    (found,) = (tmp_path / "run").glob(f"attempt-*/step-{step:09d}")
    return found


@pytest.mark.parametrize("step", [0, 3])
def test_the_file_is_what_lightning_itself_would_have_written(tmp_path, fit, stock, step):
    train(fit, tmp_path, callbacks=[EarlyStopping("loss", patience=99)])
    export(checkpoint_of(tmp_path, step), tmp_path / "out.ckpt")
    expected, found = stock(step), torch.load(tmp_path / "out.ckpt", weights_only=True)
    assert expected.keys() == found.keys()
    for key in expected:
        assert same(found[key], expected[key]), key
    assert found["hyper_parameters"] == {"width": 4, "rates": (0.1, 0.2), "loss": None}
    assert found["state_dict"]["tied.weight"] is found["state_dict"]["layers.0.weight"]


def test_at_the_end_of_an_epoch_it_is_what_lightning_writes_in_the_hooks_there(tmp_path, fit):
    saver = AtEnd()
    train(fit, tmp_path, max_epochs=1, callbacks=[saver])
    export(checkpoint_of(tmp_path, 4), tmp_path / "out.ckpt")
    assert same(torch.load(tmp_path / "out.ckpt", weights_only=True)["loops"], loaded(saver.found)["loops"])


def test_averaged_weights_are_exported_as_lightning_writes_them(tmp_path, fit, stock):
    train(fit, tmp_path, callbacks=[EMAWeightAveraging(decay=0.5)])
    export(checkpoint_of(tmp_path, 3), tmp_path / "out.ckpt")
    expected, found = stock(3), torch.load(tmp_path / "out.ckpt", weights_only=True)
    assert same(found["current_model_state"], expected["current_model_state"])
    assert same(dict(found["state_dict"]), dict(expected["state_dict"]))
    assert not same(dict(found["state_dict"]), dict(found["current_model_state"]))


def test_a_module_is_loaded_with_its_hyper_parameters(tmp_path, fit):
    net, _ = train(fit, tmp_path, Deep(width=6, rates=(1, 2)))
    said = export(tmp_path / "run", tmp_path / "out.ckpt")
    assert "step 8, batch 8, epoch" in said
    loaded = Deep.load_from_checkpoint(tmp_path / "out.ckpt")
    assert dict(loaded.hparams) == {"width": 6, "rates": (1, 2), "loss": None}
    assert same(dict(loaded.state_dict()), dict(net.state_dict()))


def test_a_hyper_parameter_that_is_no_plain_value_is_left_out_and_named(tmp_path, fit):
    train(fit, tmp_path, Deep(width=5, loss=object()), max_epochs=1)
    said = " ".join(export(tmp_path / "run", tmp_path / "out.ckpt").split())
    assert "hyper_parameters without 'loss'" in said
    assert "load_from_checkpoint(..., loss=...)" in said
    loaded = Deep.load_from_checkpoint(tmp_path / "out.ckpt", loss="mine")
    assert (loaded.hparams.width, loaded.hparams.loss) == (5, "mine")


class Configured(Plain):
    def __init__(self, conf, nested=None):
        super().__init__()
        self.save_hyperparameters(conf if nested is None else {"conf": conf, "nested": nested})
        self.layers = torch.nn.Linear(3, conf.width)


def test_a_configuration_of_omegaconf_is_one_again(tmp_path, fit):
    conf = OmegaConf.create({"width": 3, "twice": "${width}"})
    train(fit, tmp_path, Configured(conf), max_epochs=1)
    export(tmp_path / "run", tmp_path / "out.ckpt")
    found = Configured.load_from_checkpoint(tmp_path / "out.ckpt", weights_only=False)
    assert type(found.hparams) is type(conf)
    assert found.hparams == conf


def test_configurations_of_omegaconf_among_other_hyper_parameters_too(tmp_path, fit):
    conf, nested = OmegaConf.create({"width": 3}), {"list": OmegaConf.create([1, 2])}
    train(fit, tmp_path, Configured(conf, nested), max_epochs=1)
    export(tmp_path / "run", tmp_path / "out.ckpt")
    found = Configured.load_from_checkpoint(tmp_path / "out.ckpt", weights_only=False)
    assert (found.hparams.conf, found.hparams.nested) == (conf, nested)
    assert type(found.hparams.conf) is type(conf)


class Watch(L.Callback):
    """What stock Lightning has restored when it begins to train."""

    def on_train_start(self, trainer, module):
        self.step, self.epoch = trainer.global_step, trainer.current_epoch
        self.weights = {name: value.clone() for name, value in module.state_dict().items()}
        file = io.BytesIO()
        torch.save([optimizer.state_dict() for optimizer in trainer.optimizers], file)
        self.optimizers = torch.load(io.BytesIO(file.getvalue()), weights_only=True)
        self.rates = [scheduler.scheduler.state_dict() for scheduler in trainer.lr_scheduler_configs]


@pytest.mark.parametrize("step", [3, 4, 8])
def test_stock_lightning_trains_on_from_it(tmp_path, fit, stock, step):
    train(fit, tmp_path)
    said = export(checkpoint_of(tmp_path, step), tmp_path / "out.ckpt")
    assert ("inside epoch 0" in said) == (step == 3)
    watch = Watch()
    L.seed_everything(1, verbose=False)
    trainer = L.Trainer(**QUIET, max_epochs=3, callbacks=[watch], default_root_dir=tmp_path)
    trainer.fit(Deep(), make_loader(), ckpt_path=tmp_path / "out.ckpt")
    expected = stock(step)
    assert watch.step == step
    assert same(watch.weights, dict(expected["state_dict"]))
    assert same(watch.optimizers, expected["optimizer_states"])
    assert same(watch.rates, expected["lr_schedulers"])
    assert trainer.global_step == 12
