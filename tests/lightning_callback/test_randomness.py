"""What is drawn for samples, batches and validation: the same after a resume, and nothing of it twice."""

import importlib.util
import os
import random

import numpy as np
import pytest
import torch
from lightning.pytorch.profilers import PassThroughProfiler
from loader_parts import BATCH_SIZE, Collate, Own, Samples, global_draws
from replay import Model, Parts, replay, run
from small import make_loader
from torch.utils.data import DataLoader, Dataset

os.environ["NO_ALBUMENTATIONS_UPDATE"] = "1"  # it asks PyPI for a newer one when it is imported

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:lightning.*")
WORKERS = [0, 2]


class Images(Dataset):
    """Small images through a transform.

    Args:
        transform: takes what ``of`` makes of an image.
        of: takes a float image of shape (3, 8, 8).
    """

    def __init__(self, transform, of=lambda image: image):
        self.transform, self.of = transform, of

    def __len__(self):
        return 16

    def __getitem__(self, index):
        image = torch.arange(192.0).reshape(3, 8, 8) / 192 * (1 + index) / 16
        return torch.as_tensor(self.transform(self.of(image))).float()


def replay_images(directory, make_transform, num_workers, of=lambda image: image):
    def parts(num_workers):
        loader = DataLoader(Images(make_transform(), of), 4, shuffle=True, num_workers=num_workers)
        return Parts(Model(), {"train_dataloaders": loader}, {"max_epochs": 2})

    whole, _ = replay(directory, lambda: parts(0), [3, 4, 6], rebuild=lambda: parts(num_workers))
    drawn = [tuple(numbers) for _, _, _, numbers in whole.batches]
    assert len(set(drawn)) == len(drawn)


@pytest.mark.skipif(importlib.util.find_spec("torchvision") is None, reason="torchvision has no build for this torch")
@pytest.mark.parametrize("num_workers", WORKERS)
def test_transforms_of_torchvision_go_on(tmp_path, num_workers):
    from torchvision.transforms import v2

    def make_transform():
        return v2.Compose(
            [
                v2.RandomResizedCrop(8, antialias=True),
                v2.RandomHorizontalFlip(),
                v2.RandomApply([v2.ColorJitter(0.3, 0.3, 0.3)], p=0.8),
                v2.RandomChoice([v2.RandomErasing(p=1.0), v2.GaussianNoise()]),
            ]
        )

    replay_images(tmp_path, make_transform, num_workers)


class Albumentations:
    """Draws from generators that each of its transforms owns."""

    def __init__(self, seed):
        import albumentations as A

        self.compose = A.Compose(
            [
                A.RandomCrop(6, 6),
                A.HorizontalFlip(),
                A.OneOf([A.RandomBrightnessContrast(p=1), A.GaussNoise(p=1)], p=0.9),
                A.SomeOf([A.CoarseDropout(p=1), A.ToGray(p=1), A.Transpose(p=1)], n=2),
            ],
            seed=seed,
        )

    def __call__(self, image):
        return self.compose(image=image)["image"]


@pytest.mark.parametrize("num_workers", WORKERS)
@pytest.mark.parametrize("seed", [None, 137])
def test_transforms_of_albumentations_go_on(tmp_path, num_workers, seed):
    replay_images(
        tmp_path, lambda: Albumentations(seed), num_workers, of=lambda image: image.permute(1, 2, 0).numpy().copy()
    )


class MixUp(Model):
    """Mixes each batch with itself in another order, by draws of its own from all generators."""

    def on_after_batch_transfer(self, batch, dataloader_idx):
        share = np.random.beta(0.4, 0.4) if random.random() < 0.8 else 1.0
        order = torch.randperm(len(batch[0]))
        return [share * part + (1 - share) * part[order] + 0.01 * torch.randn(()) for part in batch]


def test_batches_mixed_by_a_hook_go_on(tmp_path):
    data = {"train_dataloaders": make_loader, "val_dataloaders": lambda: make_loader(8)}
    replay(tmp_path, lambda: Parts(MixUp(), {name: make() for name, make in data.items()}))


def augmented(num_samples=24, num_workers=0):
    return DataLoader(Samples(num_samples), BATCH_SIZE, shuffle=True, collate_fn=Collate(), num_workers=num_workers)


@pytest.mark.parametrize("num_workers", [0, 3])
def test_no_two_samples_batches_epochs_or_workers_draw_alike(tmp_path, num_workers):
    class Collects(Model):
        def __init__(self):
            super().__init__()
            self.drawn = []

        def training_step(self, batch, batch_idx):
            self.drawn += [row[1:] for row in batch["rows"]] + [batch["batch"]]
            return super().training_step(batch, batch_idx)

    def build():
        return Parts(Collects(), {"train_dataloaders": augmented(num_workers=num_workers)})

    found = run(tmp_path, build, seed=7).parts.model.drawn
    assert len(found) == 3 * (24 + 6)
    for draws in zip(*found, strict=True):
        assert len(set(draws)) > len(draws) - 3  # torch is seeded by 32 bits


class Draws(Model):
    """Draws in validation, from everything there is."""

    def __init__(self):
        super().__init__()
        self.own = Own()
        self.own.kinds["torch"].manual_seed(3)

    def validation_step(self, batch, batch_idx):
        global_draws()
        super().validation_step(batch, batch_idx)


@pytest.mark.parametrize(
    "often", [{"val_check_interval": 2}, {"num_sanity_val_steps": 2}, {"check_val_every_n_epoch": 2}]
)
def test_validation_does_not_move_training(tmp_path, often):
    def trained(name, **arguments):
        def build():
            data = {"train_dataloaders": augmented(), "val_dataloaders": augmented(8)}
            return Parts(Draws(), data, {"max_epochs": 2, **arguments})

        return [event for event in run(tmp_path / name, build, seed=7).events if event[0] in ("batch", "step")]

    assert trained("with", **often) == trained("without", limit_val_batches=0)


class Jittered(Model):
    """Trains by draws of its own generators, which lie deeper than what a Trainer holds."""

    def __init__(self):
        super().__init__()
        self.own = [[[[[[Own()]]]]]]

    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx) * (1 + self.own[0][0][0][0][0][0]()[1])


class Dicing(PassThroughProfiler):
    def __init__(self):
        super().__init__()
        self.rng = random.Random()


def test_generators_of_the_module_go_on_with_another_one_elsewhere_in_the_trainer(tmp_path):
    def build(**trainer):
        return Parts(Jittered(), {"train_dataloaders": make_loader()}, {"max_epochs": 2, **trainer})

    replay(tmp_path, build, [3], rebuild=lambda: build(profiler=Dicing()))
