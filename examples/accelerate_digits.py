"""Handwritten digits with Accelerate, in a run that survives being killed.

Start it, kill it (kill -9 from another terminal), start it again: it goes on where it was, and ends with the very
numbers that it would have ended with anyway. Delete its directory to begin anew.
"""

import argparse
import random

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, Dataset

from accelerate_resume import ResumePlugin, SaveEvery


class Digits(Dataset):
    def __init__(self):
        self.data = load_digits()

    def __len__(self):
        return len(self.data.target)

    def __getitem__(self, index):
        image = torch.tensor(self.data.images[index] / 16, dtype=torch.float32)
        shifted = image.roll((random.randint(-1, 1), random.randint(-1, 1)), dims=(0, 1))
        return shifted.unsqueeze(0), self.data.target[index]


def train(directory, epochs):
    set_seed(7)
    accelerator = Accelerator(cpu=not torch.cuda.is_available())  # else ranks without a GPU would train each alone
    resume = ResumePlugin(directory, save=SaveEvery(steps=50)).attach(accelerator)  # 1. before prepare
    counters = resume.counters(seen=0, best=float("inf"))  # 2. what the script counts by itself

    convolution = [nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    net = nn.Sequential(*convolution, nn.Flatten(), nn.Dropout(0.3), nn.Linear(32 * 16, 10))
    loader = DataLoader(Digits(), batch_size=32, shuffle=True, num_workers=2)
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * len(loader))
    net, optimizer, loader, schedule = accelerator.prepare(net, optimizer, loader, schedule)

    for epoch in resume.epochs(epochs):  # 3. restores first, then gives the epochs that are left
        net.train()
        for images, labels in loader:
            loss = nn.functional.cross_entropy(net(images), labels)
            accelerator.backward(loss)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            counters.seen += len(labels)
            counters.best = min(counters.best, loss.item())
        accelerator.print(f"epoch {epoch}: {counters.seen} digits seen, best loss {counters.best:.4f}")

    weights = accelerator.unwrap_model(net).parameters()
    accelerator.print(f"sum of all weights: {sum(p.double().sum().item() for p in weights):.17f}")


def parser():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", nargs="?", default="digits-accelerate-run", help="a folder, or s3://bucket/run")
    parser.add_argument("--epochs", type=int, default=30)
    return parser


if __name__ == "__main__":
    train(**vars(parser().parse_args()))
