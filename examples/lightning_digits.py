"""Handwritten digits with Lightning, in a run that survives being killed.

Start it, kill it (kill -9 from another terminal), start it again: it goes on where it was, and ends with the very
numbers that it would have ended with anyway. Delete its directory to begin anew.
"""

import argparse
import random

import lightning.pytorch as L
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, Dataset

from lightning_resume import ResumeCallback, SaveEvery


class Digits(Dataset):
    def __init__(self):
        self.data = load_digits()

    def __len__(self):
        return len(self.data.target)

    def __getitem__(self, index):
        image = torch.tensor(self.data.images[index] / 16, dtype=torch.float32)
        shifted = image.roll((random.randint(-1, 1), random.randint(-1, 1)), dims=(0, 1))
        return shifted.unsqueeze(0), self.data.target[index]


class Net(L.LightningModule):
    def __init__(self, num_steps):
        super().__init__()
        self.num_steps = num_steps
        convolution = [nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
        self.layers = nn.Sequential(*convolution, nn.Flatten(), nn.Dropout(0.3), nn.Linear(32 * 16, 10))

    def training_step(self, batch, batch_idx):
        images, labels = batch
        loss = nn.functional.cross_entropy(self.layers(images), labels)
        self.log("loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=3e-3)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.num_steps)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


def train(directory, epochs):
    L.seed_everything(7)
    loader = DataLoader(Digits(), batch_size=32, shuffle=True, num_workers=2)
    resume = ResumeCallback(directory, save=SaveEvery(steps=50))  # the one line that this package adds
    trainer = L.Trainer(max_epochs=epochs, callbacks=[resume], enable_checkpointing=False, logger=False)
    net = Net(num_steps=epochs * len(loader))
    trainer.fit(net, loader)
    print(f"sum of all weights: {sum(p.double().sum().item() for p in net.parameters()):.17f}")


def parser():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", nargs="?", default="digits-run", help="a folder, or s3://bucket/run")
    parser.add_argument("--epochs", type=int, default=30)
    return parser


if __name__ == "__main__":
    train(**vars(parser().parse_args()))
