"""Lightning's own callbacks over a resume."""

from __future__ import annotations

import json
from pathlib import Path

import lightning.pytorch as L
import pytest
from lightning.pytorch.callbacks import (
    EarlyStopping,
    LearningRateMonitor,
    ModelCheckpoint,
    RichProgressBar,
    TQDMProgressBar,
)
from lightning.pytorch.loggers import CSVLogger
from small import Net

from lightning_resume import ResumeCallback, SaveEvery


class Logs(Net):
    """Logs its loss; a start that is cut ends in the batch ``stop_at``."""

    def __init__(self, stop_at=None):
        super().__init__()
        self.stop_at = stop_at

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.log("loss", loss, prog_bar=True)
        if self.trainer.global_step == self.stop_at:
            raise InterruptedError
        return loss


@pytest.fixture
def start(fit, tmp_path):
    """One start; saves at every ``every`` steps."""

    def run(root, callbacks, *, stop_at=None, every=1, **arguments):
        L.seed_everything(7, verbose=False)
        resume = ResumeCallback(tmp_path / root / "run", save=SaveEvery(steps=every, minutes=None))
        given = {"max_epochs": 3, "callback": resume, "default_root_dir": str(tmp_path / root)}
        try:
            fit(net=Logs(stop_at), callbacks=callbacks, **given | arguments)
        except InterruptedError:
            assert stop_at is not None
        return fit.trainer

    return run


class WritesConfig(L.Callback):
    """As the callback of ``LightningCLI`` does."""

    already_saved = False

    def setup(self, trainer, pl_module, stage):
        assert self.already_saved or trainer.log_dir is not None


@pytest.mark.filterwarnings("ignore:Checkpoint directory")
def test_a_rehearsal_leaves_the_link_to_the_newest_file_and_the_configuration(start, tmp_path, monkeypatch):
    own = {"logger": CSVLogger(tmp_path / "logs"), "enable_checkpointing": True, "every": 3, "log_every_n_steps": 1}

    def callbacks():
        options = {"every_n_train_steps": 1, "save_top_k": 2, "monitor": "loss"}
        newest = ModelCheckpoint(tmp_path / "own", save_last="link", **options)
        return [newest, WritesConfig()]

    start("one", callbacks(), stop_at=7, **own)
    before = {path: path.lstat().st_mtime_ns for path in tmp_path.rglob("*")}
    monkeypatch.setenv("EXACT_RESUME_DRILL", str(tmp_path / "result.json"))
    with pytest.raises(SystemExit):
        start("one", callbacks(), stop_at=7, **own)
    assert json.loads((tmp_path / "result.json").read_text())["verdict"] in ("same", "not checked")
    (tmp_path / "result.json").unlink()
    assert {path: path.lstat().st_mtime_ns for path in tmp_path.rglob("*") if path != tmp_path} == before


class ChecksEachBatch(EarlyStopping):
    def on_train_batch_end(self, trainer, *args):
        self._run_early_stopping_check(trainer)

    def on_validation_end(self, *args):
        return


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_early_stopping_counts_on_also_right_before_the_stop(start, cut):
    def stopping():
        return ChecksEachBatch("loss", patience=3, min_delta=9.0, check_on_train_epoch_end=False)

    whole, again = stopping(), stopping()
    expected = start("whole", [whole]).global_step
    assert expected == 4
    start("cut", [stopping()], stop_at=cut)
    assert start("cut", [again]).global_step == expected
    assert again.state_dict() == whole.state_dict()
    assert again.wait_count == 3


@pytest.mark.parametrize("cut", [2, 5, 8])
def test_the_learning_rate_monitor_keeps_its_values(start, tmp_path, cut):
    def monitor():
        return LearningRateMonitor(log_momentum=True, log_weight_decay=True)

    whole, again = monitor(), monitor()
    log = {"log_every_n_steps": 1}
    start("whole", [whole], logger=CSVLogger(tmp_path / "whole"), **log)
    start("cut", [monitor()], stop_at=cut, logger=CSVLogger(tmp_path / "cut"), **log)
    start("cut", [again], logger=CSVLogger(tmp_path / "cut"), **log)
    assert again.lrs == whole.lrs
    assert len(again.lrs["lr-AdamW"]) == 12
    assert again.last_momentum_values == whole.last_momentum_values
    assert again.last_weight_decay_values == whole.last_weight_decay_values


class Position(L.Callback):
    """Where the bar stands when each batch begins: after a resume nothing has moved it yet."""

    def __init__(self):
        self.seen = []

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        bar = trainer.progress_bar_callback
        if isinstance(bar, RichProgressBar):
            task = bar.train_progress_bar
            shown = task.completed, task.total, task.description
        else:
            shown = bar.train_progress_bar.n, bar.train_progress_bar.total, bar.train_progress_bar.desc
        self.seen.append((trainer.global_step, *shown))


BARS = {
    "rich": lambda: RichProgressBar(),
    "rich, left": lambda: RichProgressBar(leave=True),
    "tqdm": lambda: TQDMProgressBar(refresh_rate=2),
    "tqdm, left": lambda: TQDMProgressBar(leave=True),
}


@pytest.mark.parametrize("length", [{}, {"max_epochs": -1, "max_steps": 7}], ids=["epochs", "steps"])
@pytest.mark.parametrize("kind", BARS)
def test_the_progress_bar_goes_on_where_it_stood(start, kind, length):
    whole, again = Position(), Position()
    shown = {"enable_progress_bar": True} | length
    start("whole", [BARS[kind](), whole], **shown)
    start("cut", [BARS[kind]()], stop_at=6, **shown)
    start("cut", [BARS[kind](), again], **shown)
    assert again.seen == whole.seen[6:]
    assert again.seen[0][1] == 2


def files_of(root):
    return sorted(str(path.relative_to(root)) for path in Path(root).rglob("*.ckpt"))


@pytest.mark.filterwarnings("ignore:.*exists and is not empty.*:UserWarning")
def test_a_file_of_another_run_is_kept_and_one_of_the_killed_attempt_is_written_again(start, tmp_path):
    def top():
        return ModelCheckpoint(tmp_path / "top", "{step}", monitor="loss", every_n_train_steps=1, save_top_k=-1)

    (tmp_path / "top").mkdir()
    (tmp_path / "top/step=3.ckpt").write_bytes(b"of another run")
    (tmp_path / "top/step=9.ckpt").write_bytes(b"of another run")
    # the checkpoint is of step 5, and files up to that of step 7 are there
    start("cut", [top()], stop_at=7, every=5, enable_checkpointing=True)
    assert "step=7.ckpt" in files_of(tmp_path / "top")
    again = top()
    start("cut", [again], every=5, enable_checkpointing=True)
    names = {f"step={step}.ckpt" for step in range(1, 13)} | {"step=3-v1.ckpt", "step=9-v1.ckpt"}
    assert set(files_of(tmp_path / "top")) == names
    assert (tmp_path / "top/step=3.ckpt").read_bytes() == (tmp_path / "top/step=9.ckpt").read_bytes()
    assert len(again.best_k_models) == 12


def test_a_folder_that_holds_the_files_of_the_run_is_no_reason_for_a_warning(start, recwarn):
    start("cut", [], stop_at=5, enable_checkpointing=True)
    start("cut", [], enable_checkpointing=True)
    assert not [w for w in recwarn if "not empty" in str(w.message)]


def test_hooks_of_user_callbacks_for_their_state_are_honoured(start):
    class Counts(L.Callback):
        def __init__(self):
            self.num, self.loaded, self.asked = 0, None, []

        def on_train_batch_end(self, *args):
            self.num += 1

        def state_dict(self):
            return {"num": self.num}

        def load_state_dict(self, state):
            self.num = state["num"]

        def on_save_checkpoint(self, trainer, pl_module, checkpoint):
            checkpoint["mine"] = {"num": self.num}

        def on_load_checkpoint(self, trainer, pl_module, checkpoint):
            self.loaded = checkpoint["mine"]

    start("cut", [Counts()], stop_at=5)
    again = Counts()
    start("cut", [again])
    assert again.loaded == {"num": 5}
    assert again.num == 12
