"""Lightning's own checkpoints with ``ResumeCallback()``: every file that is saved is gone on from exactly."""

from __future__ import annotations

import re

import pytest
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from recording import Hooks, Lab

pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning:lightning.*"),
    pytest.mark.filterwarnings("ignore:ReduceLROnPlateau conditioned on metric:RuntimeWarning"),
]

OVERRIDES = (
    "on_train_batch_start", "on_train_batch_end", "on_train_epoch_start", "on_train_epoch_end",
    "on_validation_epoch_end", "on_validation_end",
)  # fmt: skip


def keeping_all(folder, **arguments):
    return ModelCheckpoint(folder, **{"save_top_k": -1} | arguments)


def by_step(folder):
    return [Hooks(), keeping_all(folder, every_n_train_steps=1)]


def by_step_and_epoch(folder):
    by_epoch = keeping_all(folder, filename="end-{step}", every_n_epochs=1, save_on_train_epoch_end=True)
    return [*by_step(folder), by_epoch]


def best(folder, **arguments):
    stop = EarlyStopping("val", patience=arguments.pop("patience", 50))
    return [Hooks(), stop, keeping_all(folder, monitor="val", **{"save_top_k": 2, "save_last": True} | arguments)]


def at_epoch_end(folder):
    saver = keeping_all(folder, monitor="loss", save_top_k=1, save_last=True, save_on_train_epoch_end=True)
    return [Hooks(), EarlyStopping("loss", patience=50), saver]


def user_in(hook, **others):
    """A user's callback saves in the middle of the others, ModelCheckpoint does too."""
    return lambda folder: [Hooks(), Hooks(hook, folder), Hooks(), keeping_all(folder, **others)]


def module_in(hook):
    return {
        "net": {"overrides": OVERRIDES, "saves_in": hook},
        "callbacks": lambda folder: [Hooks(folder=folder), keeping_all(folder)],
    }


def two_savers(folder):
    other = keeping_all(folder, filename="other-{step}", every_n_train_steps=3)
    return [*user_in("on_train_batch_end", every_n_train_steps=2, save_last=True)(folder), other]


HOOKED = {"overrides": OVERRIDES}
KINDS = {
    "after steps": {"net": HOOKED, "callbacks": by_step},
    "after validation in between": {
        "net": HOOKED | {"plateau": "val", "interval": "step"}, "callbacks": best, "val_check_interval": 2,
    },
    "after validation": {"net": HOOKED | {"plateau": "val"}, "callbacks": best},
    "at the end of epochs": {"net": HOOKED, "callbacks": at_epoch_end},
    "until stopped early": {
        "net": HOOKED, "callbacks": lambda folder: best(folder, patience=1, save_top_k=-1), "max_epochs": 8,
    },
    "manual optimization": {
        "net": HOOKED | {"manual": True}, "callbacks": user_in("on_train_batch_end", every_n_train_steps=1),
    },
    "inside windows": {"callbacks": user_in("on_train_batch_end"), "accumulate_grad_batches": 3},
    "in a callback's end of an epoch": {"net": HOOKED, "callbacks": user_in("on_train_epoch_end")},
    "in a callback's end of validation epochs": {
        "net": HOOKED, "callbacks": user_in("on_validation_epoch_end"), "val_check_interval": 2,
    },
    "in a callback's end of validation": {
        "net": HOOKED | {"plateau": "val", "interval": "step"},
        "callbacks": user_in("on_validation_end"), "val_check_interval": 2,
    },
    "by several": {"net": HOOKED, "callbacks": two_savers},
    "until max_steps": {"net": HOOKED, "callbacks": by_step_and_epoch, "max_steps": 12, "max_epochs": -1},
    "until max_steps at an epoch's end": {"net": HOOKED, "callbacks": by_step_and_epoch, "max_steps": 10},
    "parts of epochs": {"callbacks": by_step_and_epoch, "limit_train_batches": 3, "check_val_every_n_epoch": 2},
    "links": {"callbacks": lambda f: [Hooks(), keeping_all(f, every_n_train_steps=2, save_last="link", save_top_k=1)]},
    "without validation": {"callbacks": lambda f: [Hooks(), keeping_all(f, save_last=True)], "limit_val_batches": 0},
    "validation over epochs": {
        "net": HOOKED, "callbacks": by_step, "check_val_every_n_epoch": None, "val_check_interval": 4,
    },
    "an epoch that is left early": {"net": {"leave_at": 3}, "callbacks": by_step_and_epoch},
    "loaders of unknown length": {"net": HOOKED, "callbacks": by_step_and_epoch, "batches": True},
    "in the module's end of a batch": module_in("on_train_batch_end"),
    "in the module's end of an epoch": module_in("on_train_epoch_end"),
    "in the module's end of a validation epoch": module_in("on_validation_epoch_end"),
    "in the module's end of validation": module_in("on_validation_end"),
}  # fmt: skip


def some(labels):
    """The first and the last save, and the middle one of each kind of file."""
    kinds = {}
    for label in labels:
        kinds.setdefault(re.sub(r"\d+", "", label), []).append(label)
    return dict.fromkeys([*list(labels)[:1], *(kind[len(kind) // 2] for kind in kinds.values()), *list(labels)[-1:]])


@pytest.mark.parametrize("kind", KINDS)
def test_saves_are_gone_on_from_exactly(tmp_path, kind):
    lab = Lab(tmp_path, **KINDS[kind]).train()
    for label in some(lab.saves):
        lab.check(label)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("workers", [0, 2])
def test_every_save_is_gone_on_from_exactly(tmp_path, kind, workers):
    Lab(tmp_path, workers=workers, **KINDS[kind]).train().check_all(workers=2 - workers)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("precision", ["32-true", "16-mixed"])
@pytest.mark.parametrize("kind", ["after validation in between", "at the end of epochs", "inside windows"])
def test_saves_of_a_training_on_a_gpu_are_gone_on_from_exactly(tmp_path, kind, precision):
    lab = Lab(tmp_path, accelerator="gpu", precision=precision, deterministic=True, **KINDS[kind]).train()
    for label in some(lab.saves):
        lab.check(label)
