"""``ResumeCallback()`` at the edges: after the end, after errors, where nothing can be exact, and files of others."""

from __future__ import annotations

import os
import signal
from collections import defaultdict
from pathlib import Path

import lightning.pytorch as L
import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import Checkpoint, ModelCheckpoint, OnExceptionCheckpoint
from lightning.pytorch.plugins.io import AsyncCheckpointIO
from lightning.pytorch.utilities.exceptions import SIGTERMException
from recording import Hooks, Lab
from small import QUIET, Net, make_loader

from lightning_resume import Changes, Keep, ResumeCallback, SaveEvery
from resume_core.entry import ENTRY
from resume_core.errors import ConfigChangedError, CorruptCheckpointError

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:lightning.*")


def fit(make=Net, *, ckpt_path=None, callbacks=(), seed=7, changes=None, weights_only=None, **arguments):
    L.seed_everything(seed, verbose=False)
    net = make()
    resume = ResumeCallback(changes=changes)
    saves = any(isinstance(callback, Checkpoint) for callback in callbacks)
    defaults = QUIET | {"max_epochs": 2, "enable_checkpointing": saves}
    trainer = L.Trainer(**defaults | arguments, callbacks=[resume, *callbacks])
    fit.net, fit.trainer = net, trainer
    trainer.fit(net, make_loader(), ckpt_path=ckpt_path, weights_only=weights_only)
    return net, trainer


@pytest.fixture
def stock(tmp_path):
    """A file that Lightning alone has saved after two steps."""
    path = tmp_path / "stock.ckpt"
    L.seed_everything(7, verbose=False)
    trainer = L.Trainer(**QUIET, max_steps=2, max_epochs=2)
    trainer.fit(Net(), make_loader())
    trainer.save_checkpoint(path)
    return path


def weights(net):
    return torch.cat([value.reshape(-1) for value in net.state_dict().values()])


# ---- the end


def test_a_run_saved_after_fit_goes_on_with_more_epochs(tmp_path):
    longer = Lab(tmp_path / "longer", max_epochs=5).train()
    short = Lab(tmp_path, max_epochs=3).train()
    path = tmp_path / "end.ckpt"
    short.trainer_now.save_checkpoint(path)
    net, _ = short.run(ckpt_path=path, seed=11, max_epochs=5)
    assert net.events == longer.whole.events[len(short.whole.events) :]
    found, wanted = short.ending(), dict(longer.end)
    assert found.pop("callbacks") != wanted.pop("callbacks")  # they name files of other folders
    assert found == wanted


def test_a_finished_run_trains_nothing_and_can_be_saved_again(tmp_path, messages):
    _, trainer = fit()
    trainer.save_checkpoint(tmp_path / "end.ckpt")
    net, again = fit(ckpt_path=tmp_path / "end.ckpt")
    assert net.num_steps == 0
    assert any("nothing is left to train" in message for message in messages())
    again.save_checkpoint(tmp_path / "again.ckpt")
    third, _ = fit(ckpt_path=tmp_path / "again.ckpt", max_epochs=4)
    whole, _ = fit(max_epochs=4)
    assert torch.equal(weights(third), weights(whole))


def test_a_run_that_ended_by_steps_within_an_epoch_goes_on_in_it(tmp_path):
    _, trainer = fit(max_steps=6, max_epochs=3)
    trainer.save_checkpoint(tmp_path / "end.ckpt")
    with pytest.warns(UserWarning, match="within epoch 1"):
        net, _ = fit(ckpt_path=tmp_path / "end.ckpt", max_steps=10, max_epochs=3)
    whole, _ = fit(max_steps=10, max_epochs=3)
    assert torch.equal(weights(net), weights(whole))
    assert net.num_steps == 4


def test_resumes_of_resumes_are_exact(tmp_path):
    lab = Lab(tmp_path, workers=2).train()
    for label in ("epoch=0-step=2.ckpt@0", "epoch=1-step=7.ckpt@0"):
        lab.resume(label, max_epochs=3)  # the files that this run writes are as good as those of the whole one
        written = lab.folder / "epoch=2-step=12.ckpt"
        net, _ = lab.run(ckpt_path=written, seed=23, workers=0)
        trained = [event for event in lab.whole.events if event["what"] == "train"]
        assert [event for event in net.events if event["what"] == "train"] == trained[12:]
        assert lab.ending()["parameters"] == lab.end["parameters"]


# ---- errors


class Interrupts(L.Callback):
    """As a scheduler does."""

    def __init__(self, at):
        self.at = at

    def on_train_batch_start(self, trainer, *arguments):
        if trainer.global_step == self.at:
            os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.parametrize("at", [2, 3])
def test_what_is_saved_when_a_signal_ends_training_is_exact(tmp_path, at):
    stop = ModelCheckpoint(tmp_path, filename="stop", save_on_exception=True, every_n_epochs=9)
    with pytest.raises(SIGTERMException):
        fit(callbacks=[Interrupts(at), stop])
    whole, _ = fit()
    net, _ = fit(ckpt_path=tmp_path / "stop.ckpt", seed=9, changes=Changes(allow=("seed",)))
    assert net.num_steps == 8 - (at + 1)
    assert torch.equal(weights(net), weights(whole))


def test_what_is_saved_when_an_error_ends_training_is_named_as_not_exact(tmp_path, messages):
    class Fails(Net):
        def training_step(self, batch, batch_idx):
            if self.num_steps == 2:
                raise RuntimeError("the user's")
            return super().training_step(batch, batch_idx)

    class Keeps(OnExceptionCheckpoint):
        def teardown(self, *arguments):
            pass

    with pytest.raises(RuntimeError, match="the user's"):
        fit(Fails, callbacks=[Keeps(tmp_path)])
    assert len([m for m in messages() if "after RuntimeError cannot be resumed exactly" in m]) == 1
    fit(ckpt_path=tmp_path / "on_exception.ckpt")
    assert [m for m in messages() if "on_exception.ckpt was saved after RuntimeError" in m]


class Saves(L.Callback):
    """In a hook of the user's choice."""

    def __init__(self, hook, path):
        setattr(self, hook, lambda trainer, *arguments: trainer.save_checkpoint(path))


@pytest.mark.parametrize("hook", ["on_train_batch_start", "on_before_optimizer_step", "on_train_start"])
def test_where_nothing_can_be_exact_is_said_once_when_saving_and_when_loading(tmp_path, messages, hook):
    fit(callbacks=[Saves(hook, tmp_path / "odd.ckpt")])
    said = [m for m in messages() if f"in {hook} cannot be resumed exactly" in m]
    assert len(said) == 1
    assert "on_train_batch_end" in said[0]
    fit(ckpt_path=tmp_path / "odd.ckpt", max_epochs=3)
    assert len([m for m in messages() if f"odd.ckpt was saved in {hook}" in m]) == 1


# ---- what is in the file


def test_whatever_the_state_holds_the_file_opens_without_pickle(tmp_path):
    class Odd(Net):
        def training_step(self, batch, batch_idx):
            loss = super().training_step(batch, batch_idx)
            return {"loss": loss, "odd": [np.float32(1.5), Path("a"), defaultdict(list, {1: [2]}), float("inf"), {3}]}

        def on_train_batch_end(self, outputs, batch, batch_idx):
            self.last = outputs["odd"]

    saver = ModelCheckpoint(tmp_path, filename="{step}", every_n_train_steps=1, save_top_k=-1, save_last=True)
    fit(Odd, callbacks=[saver])
    path = tmp_path / "step=3.ckpt"
    assert torch.load(path, weights_only=True)[ENTRY]["format"] == 1
    net, _ = fit(Odd, ckpt_path=path, weights_only=True)
    assert net.num_steps == 5


def test_the_batch_is_kept_only_where_something_still_needs_it(tmp_path):
    class Looks(Net):
        def on_train_batch_end(self, outputs, batch, batch_idx):
            pass

    kept = {}
    for make in (Net, Looks):
        folder = tmp_path / make.__name__
        fit(make, callbacks=[ModelCheckpoint(folder, filename="one", every_n_train_steps=1)], max_steps=1)
        entry = torch.load(folder / "one.ckpt", weights_only=True)[ENTRY]
        kept[make] = [name for name in entry["tensors"] if "arguments" in name]
    assert kept[Net] == []
    assert len(kept[Looks]) == 2  # the loss and the batch


def test_what_no_checkpoint_can_hold_is_named_and_the_file_written_all_the_same(tmp_path, messages):
    class Odd(Net):
        def training_step(self, batch, batch_idx):
            return {"loss": super().training_step(batch, batch_idx), "odd": object()}

        def on_train_batch_end(self, outputs, batch, batch_idx):
            pass

    saver = ModelCheckpoint(tmp_path, filename="one", every_n_train_steps=1)
    fit(Odd, callbacks=[saver], max_steps=2)
    assert len([m for m in messages() if "point.arguments" in m]) == 1
    assert "incomplete" in torch.load(tmp_path / "one.ckpt", weights_only=True)[ENTRY]


def test_files_written_in_the_background_are_complete(tmp_path):
    saver = ModelCheckpoint(tmp_path, filename="{step}", every_n_train_steps=3, save_top_k=-1)
    whole, _ = fit(callbacks=[saver], plugins=[AsyncCheckpointIO()])
    net, _ = fit(ckpt_path=tmp_path / "step=3.ckpt")
    assert net.num_steps == 5
    assert torch.equal(weights(net), weights(whole))


def test_a_file_of_a_newer_format_is_refused(tmp_path):
    _, trainer = fit()
    trainer.save_checkpoint(tmp_path / "end.ckpt")
    checkpoint = torch.load(tmp_path / "end.ckpt", weights_only=True)
    checkpoint[ENTRY]["format"] = 99
    torch.save(checkpoint, tmp_path / "end.ckpt")
    with pytest.raises(CorruptCheckpointError, match="format 99"):
        fit(ckpt_path=tmp_path / "end.ckpt")


def test_a_changed_config_is_refused_before_anything_is_loaded(tmp_path):
    _, trainer = fit()
    trainer.save_checkpoint(tmp_path / "end.ckpt")
    with pytest.raises(ConfigChangedError, match="seed"):
        fit(ckpt_path=tmp_path / "end.ckpt", seed=8, max_epochs=3)
    assert fit.net.num_loads == 0
    fit(ckpt_path=tmp_path / "end.ckpt", seed=8, max_epochs=3, changes=Changes(allow=("seed",)))
    assert fit.net.num_steps == 4


# ---- files of others, and how they are found


def test_a_stock_file_is_loaded_as_lightning_does_with_one_warning(stock, messages):
    net, trainer = fit(ckpt_path=stock)
    assert trainer.global_step == 6  # Lightning takes the epoch to be over
    said = [m for m in messages() if "stock.ckpt was saved without ResumeCallback" in m]
    assert len(said) == 1
    assert "order and augmentation of samples" in said[0]
    assert net.num_loads == 1


@pytest.mark.parametrize("name", ["last", "best"])
def test_names_that_lightning_resolves_are_resolved_by_it(tmp_path, name):
    def saver():
        return ModelCheckpoint(tmp_path, filename="{step}", every_n_train_steps=3, save_last=True)

    first = saver()
    whole, _ = fit(callbacks=[first])
    other = saver()
    other.best_model_path = first.best_model_path
    net, _ = fit(ckpt_path=name, callbacks=[other])
    assert net.num_steps == 2
    assert torch.equal(weights(net), weights(whole))


def test_a_file_may_be_anywhere_that_lightning_can_read(tmp_path):
    saver = ModelCheckpoint(f"memory://{tmp_path.name}", filename="{step}", every_n_train_steps=3, save_top_k=-1)
    whole, _ = fit(callbacks=[saver])
    net, _ = fit(ckpt_path=f"memory://{tmp_path.name}/step=3.ckpt")
    assert net.num_steps == 5
    assert torch.equal(weights(net), weights(whole))


@pytest.mark.parametrize(
    "arguments", [{"save": SaveEvery()}, {"keep": Keep()}, {"resume": "must"}, {"storage_options": {"key": "x"}}]
)
def test_what_needs_a_directory_is_refused_without_one(arguments):
    with pytest.raises(ValueError, match=next(iter(arguments))):
        ResumeCallback(**arguments)


def test_saving_moves_no_random_number(tmp_path):
    class Draws(Net):
        def on_save_checkpoint(self, checkpoint):
            torch.rand(3)

    class Drops(Draws):
        def training_step(self, batch, batch_idx):
            return super().training_step(batch, batch_idx) * torch.rand(())

    saver = ModelCheckpoint(tmp_path, filename="{step}", every_n_train_steps=3, save_top_k=-1)
    saved, _ = fit(Drops, callbacks=[saver])
    plain, _ = fit(Drops)
    resumed, _ = fit(Drops, ckpt_path=tmp_path / "step=3.ckpt")
    assert torch.equal(weights(saved), weights(plain))
    assert torch.equal(weights(saved), weights(resumed))


def test_hooks_inside_a_sanity_check_or_outside_of_fit_leave_files_that_say_so(tmp_path, messages):
    class Validates(Net):
        def validation_step(self, batch, batch_idx):
            return None

    L.seed_everything(7, verbose=False)
    saves = Saves("on_validation_end", tmp_path / "odd.ckpt")
    trainer = L.Trainer(**QUIET, max_epochs=1, callbacks=[ResumeCallback(), saves])
    trainer.fit(Validates(), make_loader(), make_loader())
    assert [m for m in messages() if "of the sanity check cannot be resumed exactly" in m]
    trainer.validate(trainer.lightning_module, make_loader())  # saves again: what was saved last is the end of fit
    assert "structure" in torch.load(tmp_path / "odd.ckpt", weights_only=True)[ENTRY]


def test_hooks_that_record_are_recorded(tmp_path):
    """The comparison of the other tests is not empty."""
    lab = Lab(tmp_path, callbacks=lambda folder: [Hooks(), ModelCheckpoint(folder)], max_epochs=1).train()
    kinds = {event["what"] for event in lab.whole.events}
    assert {"train", "validate", "logged", "on_train_epoch_end", "on_validation_end"} <= kinds
