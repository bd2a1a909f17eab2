"""A checkpoint says where loggers wrote and which files there are; one made by hand may say anything."""

from __future__ import annotations

import json

import crafted
import pytest
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from small import Net

from resume_core.errors import CorruptCheckpointError

LOGGERS = {"csv": CSVLogger, "tensorboard": TensorBoardLogger}


class Logging(Net):
    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.log("loss", loss)
        self.log("better", float(self.global_step))
        return loss


def newest(tmp_path):
    """The folder of the checkpoint that is restored when more epochs are asked for."""
    paths = (tmp_path / "run").glob("*/*/manifest.json")
    open_ended = [path for path in paths if crafted.fields(path)["header"]["finished"] is None]
    return max(open_ended, key=lambda path: crafted.fields(path)["serial"]).parent


PLACES = ({"version": "../../outside"}, {"version": "/OUTSIDE"}, {"name": "../outside"})
CASES = [(kind, place) for kind in LOGGERS for place in PLACES] + [("tensorboard", {"token": "/../../outside"})]


@pytest.mark.parametrize(("kind", "place"), CASES, ids=str)
def test_a_logger_is_not_led_out_of_its_folder(fit, tmp_path, kind, place):
    inside = tmp_path / "deep" / "logs"
    fit(net=Logging(), logger=LOGGERS[kind](str(inside), name="own"), log_every_n_steps=1)
    path = newest(tmp_path) / "manifest.json"
    header = crafted.fields(path)["header"]
    odd = {name: value.replace("/OUTSIDE", str(tmp_path / "outside")) for name, value in place.items()}
    header["preamble"]["loggers"][0] |= odd
    crafted.change(path, "manifest", header=header)
    for other in (tmp_path / "run").glob("*/*/manifest.json"):
        if crafted.fields(other)["header"]["finished"] is not None:
            other.unlink()
    before = crafted.tree(tmp_path)
    with pytest.raises(CorruptCheckpointError, match="no folder below"):
        fit(net=Logging(), logger=LOGGERS[kind](str(inside), name="own"), max_epochs=3, log_every_n_steps=1)
    assert [name for name in {*crafted.tree(tmp_path)} - {*before} if not name.startswith("deep/logs/")] == []
    assert not list(tmp_path.rglob("outside*"))


def test_a_file_that_a_checkpoint_claims_for_model_checkpoint_is_not_deleted(fit, tmp_path):
    def saver():
        return ModelCheckpoint(tmp_path / "best", monitor="better", mode="max", save_top_k=1, every_n_train_steps=1)

    fit(net=Logging(), callbacks=[saver()], enable_checkpointing=True)
    precious = tmp_path / "precious.txt"
    precious.write_text("mine")
    folder = newest(tmp_path)
    text = (folder / "training.json").read_text()
    (best,) = {path.name for path in (tmp_path / "best").glob("*.ckpt")}
    assert text.count(str(tmp_path / "best" / best)) >= 1
    text = text.replace(json.dumps(str(tmp_path / "best" / best)), json.dumps(str(precious)))
    crafted.replace(folder, "training.json", text.encode())
    fit(net=Logging(), callbacks=[saver()], enable_checkpointing=True, max_epochs=4)
    assert precious.read_text() == "mine"
