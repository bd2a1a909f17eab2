"""Training on a GPU under Lightning: killed or replayed, it goes on to the last bit."""

import lightning.pytorch as L
import pytest
import torch
import torchmetrics
from harness import Job, assert_same_run, assert_tail, kill_at, train
from lightning.pytorch.callbacks import EMAWeightAveraging
from replay import Parts, replay
from torch import nn
from torch.utils.data import DataLoader, Dataset

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


class Noisy(Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, index):
        return {"x": torch.randn(3, 8, 8) + index / 10, "y": index % 5}


class Vision(L.LightningModule):
    """Convolutions in channels_last, batch norm, dropout and noise from two generators of the GPU."""

    def __init__(self, optimizer, overflow_at=None):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.Conv2d(16, 8, 3, stride=2),
            nn.Flatten(),
            nn.Dropout(0.3),
            nn.Linear(72, 5),
        ).to(memory_format=torch.channels_last)
        self.make_optimizer, self.overflow_at = optimizer, overflow_at
        self.mean = torchmetrics.MeanMetric()
        self.own = None

    def setup(self, stage):
        self.own = torch.Generator(device=self.trainer.strategy.root_device)
        self.own.manual_seed(5)

    def training_step(self, batch, batch_idx):
        x = batch["x"].contiguous(memory_format=torch.channels_last)
        x = x + 0.1 * torch.rand_like(x) + 0.1 * torch.rand(x.shape, generator=self.own, device=x.device)
        loss = nn.functional.cross_entropy(self.layers(x).float(), batch["y"])
        if self.trainer.fit_loop.epoch_loop.batch_progress.total.ready - 1 == self.overflow_at:
            loss = loss * torch.tensor(1e30, device=loss.device) * 1e8  # gradients overflow: the scale halves
        self.mean.update(loss.detach())
        self.log("loss", loss, on_step=True, on_epoch=True)
        self.log("mean", self.mean, on_epoch=True)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val", self.layers(batch["x"]).float().sum() + torch.rand((), device=self.device))

    def configure_optimizers(self):
        optimizer = self.make_optimizer(self.parameters())
        return [optimizer], [
            {"scheduler": torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 30), "interval": "step"}
        ]


def adamw(**options):
    return lambda parameters: torch.optim.AdamW(parameters, lr=0.01, **options)


@pytest.mark.parametrize("precision", ["32-true", "16-mixed", "bf16-mixed", "bf16-true", "64-true"])
def test_every_precision_goes_on_bit_for_bit(tmp_path, precision):
    def build():
        data = {
            "train_dataloaders": DataLoader(Noisy(), 4, shuffle=True, pin_memory=True),
            "val_dataloaders": DataLoader(Noisy(), 8, pin_memory=True),
        }
        trainer = {"accelerator": "gpu", "precision": precision, "deterministic": True, "gradient_clip_val": 1.0}
        return Parts(Vision(adamw(), overflow_at=5 if precision == "16-mixed" else None), data, trainer)

    whole, _ = replay(tmp_path, build)
    if precision == "16-mixed":
        scales = [event[-1][0] for event in whole.events if event[0] == "step"]
        assert min(scales) < max(scales)


@pytest.mark.parametrize(
    "optimizer",
    [
        adamw(fused=True),
        adamw(capturable=True),
        adamw(foreach=False),
        lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.9, nesterov=True),
        lambda parameters: torch.optim.RAdam(parameters, lr=0.01),
        lambda parameters: torch.optim.Adafactor(parameters, lr=0.01),
    ],
    ids=["fused", "capturable", "loop", "SGD", "RAdam", "Adafactor"],
)
def test_every_kind_of_optimizer_goes_on_bit_for_bit(tmp_path, optimizer):
    def build():
        data = {"train_dataloaders": DataLoader(Noisy(), 4, shuffle=True)}
        trainer = {"accelerator": "gpu", "deterministic": True, "accumulate_grad_batches": 2, "max_epochs": 2}
        return Parts(Vision(optimizer), data, trainer)

    replay(tmp_path, build, [2, 6, 8])


def test_an_average_of_the_weights_on_the_gpu_goes_on(tmp_path):
    def build():
        data = {"train_dataloaders": DataLoader(Noisy(), 4, shuffle=True)}
        trainer = {"accelerator": "gpu", "deterministic": True, "max_epochs": 2}
        return Parts(Vision(adamw()), data, trainer, [EMAWeightAveraging(decay=0.9)])

    replay(tmp_path, build, [1, 6, 7])


@pytest.mark.parametrize("precision", ["32-true", "16-mixed"])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_kill_at_any_batch_changes_nothing(tmp_path, precision, workers):
    options = {"trainer": {"accelerator": "gpu", "precision": precision, "deterministic": True, "plugins": None}}
    reference = Job(str(tmp_path), "reference", str(tmp_path / "reference"), options=options)
    end = train(reference)
    for cut in (1, 4, 5, 9):
        first = reference.but(name=f"first-{cut}", directory=str(tmp_path / f"ckpt-{cut}"), workers=workers)
        kill_at(first, cut)
        second = first.but(name=f"second-{cut}", seed=100 + cut)
        found = train(second)
        assert_same_run((reference, end), found, first, second)
        assert_tail((reference, end), found, second)
