"""Finders tune a new run, and a run that goes on takes what they had found."""

from __future__ import annotations

import lightning.pytorch as L
import pytest
import torch
from lightning.pytorch.callbacks import BatchSizeFinder, LearningRateFinder
from lightning.pytorch.tuner import Tuner
from lightning.pytorch.tuner import batch_size_scaling as sizes
from lightning.pytorch.tuner import lr_finder as rates
from small import QUIET, Settle, make_loader

from lightning_resume import Changes, ResumeCallback, SaveEvery
from resume_core.errors import ConfigChangedError, ResumeError

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:lightning.*")
RATE = {"num_training_steps": 14, "early_stop_threshold": None}
TUNER_RATE = {"num_training": 14, "early_stop_threshold": None}


class Tunable(L.LightningModule):
    def __init__(self, *, lr=0.01, scheduled=True, early=False, stop_at=None):
        super().__init__()
        self.lr, self.batch_size = lr, 2
        self.scheduled, self.early, self.stop_at = scheduled, early, stop_at
        self.layers = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Dropout(0.5), torch.nn.Linear(4, 1))
        self.seen = []

    def train_dataloader(self):
        return make_loader(64, self.batch_size)

    def training_step(self, batch, batch_idx):
        loss = self.layers(batch[0]).pow(2).mean()
        if any(isinstance(callback, ResumeCallback) for callback in self.trainer.callbacks):
            if self.trainer.global_step == self.stop_at:
                raise InterruptedError
            rate = self.trainer.optimizers[0].param_groups[0]["lr"]
            self.seen.append((self.trainer.global_step, batch[0][:, 0].tolist(), loss.item(), rate))
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=self.lr)
        if not self.scheduled:
            return optimizer
        horizon = self.trainer.estimated_stepping_batches if self.early else 50
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, horizon)
        return [optimizer], [{"scheduler": scheduler, "interval": "step"}]


@pytest.fixture
def start(tmp_path):
    """Start the script once; the module, and what a Tuner gave."""

    def run(folder, callbacks, *, seed=1, tuner=(), changes=("seed",), **arguments):
        L.seed_everything(seed, verbose=False)
        net = Tunable(**arguments)
        every = SaveEvery(steps=5, minutes=None)
        resume = ResumeCallback(tmp_path / folder, save=every, changes=Changes(allow=changes))
        made = QUIET | {"max_epochs": 2, "default_root_dir": str(tmp_path / "root")}
        trainer = L.Trainer(**made, callbacks=[resume, Settle(), *callbacks()])
        found = [getattr(Tuner(trainer), name)(net, **given) for name, given in tuner]
        try:
            trainer.fit(net)
        except InterruptedError:
            assert arguments.get("stop_at") is not None
        return net, found

    return run


@pytest.fixture
def tunings(monkeypatch):
    """How often anything was tuned."""
    calls = []
    for module, name in ((rates._LRFinder, "_exchange_scheduler"), (sizes, "_run_power_scaling")):
        plain = getattr(module, name)
        monkeypatch.setattr(
            module, name, lambda *a, plain=plain, name=name, **k: (calls.append(name), plain(*a, **k))[1]
        )
    return calls


CASES = {
    "learning rate": (lambda: [LearningRateFinder(**RATE)], (), {}),
    "without a scheduler": (lambda: [LearningRateFinder(**RATE)], (), {"scheduled": False}),
    "batch size": (lambda: [BatchSizeFinder(max_trials=3)], (), {}),
    "batch size and a horizon from it": (lambda: [BatchSizeFinder(max_trials=3)], (), {"early": True}),
    "both": (lambda: [BatchSizeFinder(max_trials=3), LearningRateFinder(**RATE)], (), {}),
    "a tuner of both": (list, (("scale_batch_size", {"max_trials": 3}), ("lr_find", TUNER_RATE)), {}),
}


@pytest.mark.parametrize("case", CASES)
def test_a_run_that_was_tuned_goes_on_without_tuning(start, tunings, case):
    callbacks, tuner, arguments = CASES[case]
    whole, _ = start("whole", callbacks, tuner=tuner, **arguments)
    _, found = start("cut", callbacks, tuner=tuner, stop_at=6, **arguments)
    num_tunings = len(tunings)
    assert num_tunings
    again, found_again = start("cut", callbacks, tuner=tuner, seed=2, **arguments)
    assert len(tunings) == num_tunings
    assert (again.lr, again.batch_size) == (whole.lr, whole.batch_size) != (0.01, 2)
    assert again.seen == whole.seen[5:]
    assert all(torch.equal(a, b) for a, b in zip(again.parameters(), whole.parameters(), strict=True))
    assert [getattr(f, "results", f) for f in found_again] == [getattr(f, "results", f) for f in found]


def test_what_was_found_is_asked_of_the_finder_as_before(start):
    finder, again = LearningRateFinder(**RATE), LearningRateFinder(**RATE)
    start("run", lambda: [finder], stop_at=3)
    start("run", lambda: [again], seed=2)
    assert again.optimal_lr.suggestion() == finder.optimal_lr.suggestion()
    sizer = BatchSizeFinder(max_trials=3)
    start("other", lambda: [sizer], stop_at=3)
    again = BatchSizeFinder(max_trials=3)
    start("other", lambda: [again], seed=2)
    assert again.optimal_batch_size == sizer.optimal_batch_size == 8


def test_a_tuned_run_is_compared_by_what_was_found(start):
    tuned, _ = start("run", lambda: [LearningRateFinder(**RATE)], scheduled=False, stop_at=3)
    start("run", list, scheduled=False, lr=tuned.lr, stop_at=5)  # the same settings, written into the script
    with pytest.raises(ConfigChangedError, match=r"optimizer\.0\.lr"):
        start("run", list, scheduled=False)


def test_a_finder_that_comes_late_does_not_tune(start, tunings):
    start("run", list, stop_at=3)
    start("run", lambda: [LearningRateFinder(**RATE)])
    assert tunings == []


def test_tuning_in_the_middle_of_training_is_refused(start):
    class Later(LearningRateFinder):
        def on_fit_start(self, *args):
            return

        def on_train_epoch_start(self, trainer, pl_module):
            self.lr_find(trainer, pl_module)

    with pytest.raises(ResumeError, match="Later tunes in the middle"):
        start("run", lambda: [Later()])
