"""``pytorch_lightning`` is served as well as ``lightning``, and neither needs the other."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import harness
import lightning.pytorch as L
import pytest

from lightning_resume import ResumeCallback
from lightning_resume._package import package_of

ALONE = """
import sys
sys.modules["lightning"] = None  # as if it were not installed
import logging, warnings
warnings.simplefilter("ignore")
from lightning_resume import ResumeCallback, SaveEvery
import pytorch_lightning as pl
import torch, torchmetrics
from torch.utils.data import DataLoader, TensorDataset

assert issubclass(ResumeCallback, pl.Callback)
directory = sys.argv[1]


class Net(pl.LightningModule):
    def __init__(self, fail_at=None):
        super().__init__()
        self.layer = torch.nn.Linear(3, 1)
        self.mean = torchmetrics.MeanMetric()
        self.fail_at = fail_at

    def training_step(self, batch, batch_idx):
        if self.global_step == self.fail_at:
            raise RuntimeError("cut")
        loss = torch.nn.functional.dropout(self.layer(batch[0]), 0.5).pow(2).mean()
        self.log("loss", loss, on_epoch=True)
        self.mean.update(loss.detach())
        self.log("mean", self.mean, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val", self.layer(batch[0]).sum())

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.1)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
        return [optimizer], [{"scheduler": plateau, "monitor": "loss_epoch"}]


def fit(name, **arguments):
    pl.seed_everything(7, verbose=False)
    net = Net(**arguments)
    data = TensorDataset(torch.arange(48.0).reshape(16, 3) / 50)
    callbacks = [ResumeCallback(f"{directory}/{name}", save=SaveEvery(steps=1)), pl.callbacks.Timer("00:01:00:00")]
    trainer = pl.Trainer(max_epochs=3, accelerator="cpu", devices=1, logger=False, enable_progress_bar=False,
                         enable_model_summary=False, enable_checkpointing=False, callbacks=callbacks)
    trainer.fit(net, DataLoader(data, 4, shuffle=True), DataLoader(data, 4))
    return {**net.state_dict(), **trainer.callback_metrics}, trainer.global_step


expected = fit("whole")
try:
    fit("cut", fail_at=6)
except RuntimeError:
    pass
found = fit("cut")
assert found[1] == expected[1] == 12
assert found[0].keys() == expected[0].keys()
assert all(torch.equal(found[0][name], value) for name, value in expected[0].items())
assert fit("cut")[0].keys() == expected[0].keys()
assert not [name for name in sys.modules if name.startswith("lightning.")]
"""


def test_pytorch_lightning_alone_resumes_exactly(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(ALONE)
    root = str(Path(sys.modules["lightning_resume"].__file__).parents[1])
    ended = subprocess.run(
        [sys.executable, str(script), str(tmp_path)],
        capture_output=True, text=True, check=False,
        env={"PYTHONPATH": root, "PATH": "", "EXACT_RESUME_NOTICES": "off"},
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert "resumed at step" in ended.stderr
    assert ended.stderr.count("nothing to train: max_epochs=3 was reached") == 1


def _others(pipe):
    """In a process that has imported Lightning and the callback."""
    found = [name for name in sys.modules if name.split(".")[0] == "pytorch_lightning"]
    pipe.send((issubclass(ResumeCallback, L.Callback), found))


def test_lightning_alone_imports_nothing_of_the_other_package():
    ours, theirs = harness.CONTEXT.Pipe()
    process = harness.CONTEXT.Process(target=_others, args=(theirs,))
    process.start()
    theirs.close()
    assert ours.recv() == (True, [])
    process.join()


def test_the_package_is_that_of_the_object_whatever_it_was_subclassed_to():
    class Own(L.Trainer):
        pass

    trainer = Own(logger=False, enable_progress_bar=False, accelerator="cpu")
    assert package_of(trainer).root == "lightning.pytorch"
    assert package_of(trainer).missing() == []
    assert isinstance(ResumeCallback("x"), package_of(trainer).Callback)
    with pytest.raises(TypeError, match="pytorch_lightning"):
        package_of(object())
