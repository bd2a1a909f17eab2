"""Small fits inside the test process, for what needs no kill."""

from __future__ import annotations

import logging

import lightning.pytorch as L
import pytest
from small import QUIET, Net, Settle, make_loader

from lightning_resume import Changes, ResumeCallback, SaveEvery


@pytest.fixture(autouse=True)
def _alone(monkeypatch):
    """No environment of the developer, and no global seed of one test in the next; no arguments of pytest's."""
    monkeypatch.delenv("EXACT_RESUME", raising=False)
    monkeypatch.setenv("PL_GLOBAL_SEED", "0")  # so that what a test sets is undone
    monkeypatch.delenv("PL_GLOBAL_SEED")
    monkeypatch.setattr("sys.argv", ["train.py"])  # LightningCLI warns when there are some


@pytest.fixture
def fit(tmp_path, monkeypatch):
    """Train in ``tmp_path``; returns the module and the trainer."""

    def run(*, seed=7, net=None, loader=None, callback=None, callbacks=(), changes=None, ckpt_path=None, **trainer):
        L.seed_everything(seed, verbose=False)
        net = net if net is not None else Net()
        every = SaveEvery(steps=1, minutes=None)
        resume = callback or ResumeCallback(tmp_path / "run", save=every, changes=changes or Changes())
        arguments = QUIET | {"max_epochs": 2, "default_root_dir": str(tmp_path)} | trainer
        made = L.Trainer(**arguments, callbacks=[resume, Settle(), *callbacks])
        run.net, run.trainer = net, made
        made.fit(net, loader if loader is not None else make_loader(), ckpt_path=ckpt_path)
        return net, made

    run.quiet, run.settle = QUIET | {"default_root_dir": str(tmp_path)}, Settle
    return run


@pytest.fixture
def messages(caplog):
    """What the callback logged."""
    logger = logging.getLogger("lightning.pytorch.exact_resume")
    logger.addHandler(caplog.handler)
    logger.setLevel(logging.INFO)
    # a record comes twice where the logger also hands it to the root's handlers
    yield lambda: [r.getMessage() for r in dict.fromkeys(caplog.records) if r.name == logger.name]
    logger.removeHandler(caplog.handler)
    logger.setLevel(logging.NOTSET)
