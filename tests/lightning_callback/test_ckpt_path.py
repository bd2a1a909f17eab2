"""``ckpt_path`` together with a directory: it starts the run, is remembered, and is passed over from then on."""

from __future__ import annotations

import json
import shutil

import lightning.pytorch as L
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from small import QUIET, Net, Settle, make_loader

from lightning_resume import Changes, Keep, ResumeCallback, SaveEvery
from resume_core.errors import ConfigChangedError

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:lightning.*")


class Drops(Net):
    """Draws in each step, so that a wrong random state shows."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def training_step(self, batch, batch_idx):
        self.seen.append((self.current_epoch, batch_idx, batch[0].tolist()))
        return super().training_step(batch, batch_idx) * torch.rand(())


@pytest.fixture
def train(tmp_path):
    """Train in ``tmp_path/run``, or without a directory."""

    def run(ckpt_path=None, *, directory="run", seed=7, resume="auto", changes=None, callbacks=(), **arguments):
        L.seed_everything(seed, verbose=False)
        net, changes = Drops(), changes or Changes(allow=("seed",))
        if directory is None:
            callback = ResumeCallback(changes=changes)
        else:
            every = SaveEvery(steps=1, minutes=None)
            path = tmp_path / directory
            callback = ResumeCallback(path, resume=resume, save=every, keep=Keep(last=99), changes=changes)
        defaults = QUIET | {"max_epochs": 3, "enable_checkpointing": bool(callbacks)}
        settle = [] if directory is None else [Settle()]
        trainer = L.Trainer(**defaults | arguments, callbacks=[callback, *settle, *callbacks])
        run.net = net
        trainer.fit(net, make_loader(), ckpt_path=ckpt_path)
        return net, trainer

    return run


@pytest.fixture
def files(train, tmp_path):
    """What a run without a directory has saved: after steps, and at the end of an epoch."""

    def saver(**arguments):
        return ModelCheckpoint(tmp_path / "files", **{"save_top_k": -1} | arguments)

    by_epoch = saver(filename="end-{step}", every_n_epochs=1, save_on_train_epoch_end=True)
    train.whole, _ = train(directory=None, callbacks=[saver(filename="{step}", every_n_train_steps=1), by_epoch])
    return tmp_path / "files"


def names(tmp_path):
    return sorted(path.name for path in (tmp_path / "run").glob("*/step-*"))


@pytest.mark.parametrize("name", ["step=3", "step=4", "end-step=4", "step=6"])
def test_a_run_that_starts_from_a_complete_file_goes_on_exactly_and_so_does_its_directory(train, files, tmp_path, name):
    done = int(name[-1])
    whole = train.whole
    net, _ = train(files / f"{name}.ckpt", seed=8, max_steps=7)
    assert net.seen == whole.seen[done:7]
    expected = "step-000000004" if name == "end-step=4" else f"step-00000000{done}"
    assert names(tmp_path)[0] == expected  # the state as it was loaded, and the rest of that batch done
    for resume in ("auto", f"attempt-0001/step-00000000{done + 1}"):
        rest, _ = train(files / f"{name}.ckpt", seed=9, resume=resume)
        assert rest.seen == whole.seen[7 if resume == "auto" else done + 1 :]
        assert all(map(torch.equal, rest.state_dict().values(), whole.state_dict().values()))


def test_a_run_may_start_from_a_stock_file_in_the_middle_of_an_epoch(train, tmp_path, messages):
    stock = ModelCheckpoint(tmp_path, filename="stock", every_n_train_steps=2, save_top_k=1)
    trainer = L.Trainer(**QUIET | {"enable_checkpointing": True}, max_steps=2, callbacks=[stock])
    trainer.fit(Drops(), make_loader())
    first, _ = train(tmp_path / "stock.ckpt", max_steps=5)
    assert any("without ResumeCallback" in m for m in messages())
    rest, _ = train(tmp_path / "stock.ckpt", seed=9)
    again, _ = train(tmp_path / "stock.ckpt", seed=9, resume="attempt-0001/step-000000002")
    assert again.seen == first.seen + rest.seen
    assert all(map(torch.equal, rest.state_dict().values(), again.state_dict().values()))


def test_the_file_that_started_the_run_is_passed_over_later_wherever_it_lies_and_gone_or_not(
    train, files, tmp_path, messages
):
    train(files / "step=3.ckpt", max_steps=5)
    moved = shutil.move(files / "step=3.ckpt", tmp_path / "moved.ckpt")
    for path in (moved, files / "step=3.ckpt"):
        net, _ = train(path, seed=9, max_steps=6)
        assert net.num_steps <= 1
    train(seed=9, max_steps=7)  # and is remembered by an attempt that was given none
    with pytest.raises(ConfigChangedError):
        train(files / "step=2.ckpt")
    assert len([m for m in messages() if "is not loaded: the run goes on from its own newest" in m]) == 2
    for path in (tmp_path / "run").glob("*/attempt.json"):
        assert "step=3.ckpt" in json.loads(path.read_text())["info"]["origin"]["path"]


def test_another_file_is_refused_and_both_are_named(train, files):
    train(files / "step=3.ckpt", max_steps=5)
    with pytest.raises(ConfigChangedError, match=r"step=2\.ckpt.*step=3\.ckpt") as refused:
        train(files / "step=2.ckpt")
    assert train.net.num_loads == 0
    assert refused.value.differences[0].name == "origin"


def test_a_file_that_was_written_over_is_another_one(train, files):
    train(files / "step=3.ckpt", max_steps=5)
    shutil.copy(files / "step=4.ckpt", files / "step=3.ckpt")
    with pytest.raises(ConfigChangedError, match="origin"):
        train(files / "step=3.ckpt")


def test_a_file_given_to_a_run_that_began_without_one_is_refused(train, files):
    train(max_steps=2)
    with pytest.raises(ConfigChangedError, match="began without one"):
        train(files / "step=3.ckpt")


def test_another_file_can_be_allowed_and_is_passed_over_then(train, files, messages):
    train(files / "step=3.ckpt", max_steps=5)
    net, _ = train(files / "step=2.ckpt", changes=Changes(allow=("seed", "origin")), max_steps=6)
    assert net.num_steps == 1
    assert not any("no run has" in m for m in messages())
    with pytest.raises(ConfigChangedError):
        train(files / "step=2.ckpt")
    train(files / "step=2.ckpt", changes=Changes(otherwise="warn"), max_steps=7)
    assert any("ckpt_path names" in m for m in messages())


@pytest.mark.parametrize("name", ["last", "best"])
def test_a_file_that_lightning_looks_for_is_passed_over_without_a_word_of_change(train, tmp_path, messages, name):
    saver = ModelCheckpoint(tmp_path / "files", every_n_train_steps=1, save_last=True)
    train(callbacks=[saver], max_steps=3)
    other = ModelCheckpoint(tmp_path / "files", every_n_train_steps=1, save_last=True)
    other.best_model_path = saver.best_model_path
    net, _ = train(name, callbacks=[other], max_steps=5)
    assert net.num_steps == 2
    assert any("is not loaded" in m for m in messages())


def test_a_run_begun_anew_starts_from_the_file_again(train, files):
    train(files / "step=3.ckpt", max_steps=5)
    net, _ = train(files / "step=2.ckpt", resume="never", max_steps=5)
    assert net.num_steps == 3
    net, _ = train(files / "step=2.ckpt", max_steps=7)
    assert net.num_steps == 2


def test_files_in_lightnings_format_stay_as_lightning_writes_them_where_there_is_a_directory(train, tmp_path):
    saver = ModelCheckpoint(tmp_path / "files", filename="one", every_n_train_steps=1)
    train(callbacks=[saver], max_steps=1)
    assert "exact_resume" not in torch.load(tmp_path / "files" / "one.ckpt", weights_only=True)
