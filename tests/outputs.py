"""Loggers and Lightning's callbacks for the scripts, and what they left behind as the parent compares it."""

from __future__ import annotations

import collections
import json
import os
from pathlib import Path
from typing import Any

import harness
import lightning.pytorch as L
import torch
from lightning.pytorch.callbacks import EarlyStopping, LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger

_LOGGERS = {"csv": CSVLogger, "tensorboard": TensorBoardLogger}


def arguments(job: harness.Job) -> dict[str, Any]:
    """Those of the Trainer: ``loggers`` is a list of kind and arguments, or True for Lightning's own choice."""
    chosen = job.options.get("loggers")
    if chosen is None:
        return {}
    made = chosen if chosen is True else [_LOGGERS[kind](job.root, **given) for kind, given in chosen]
    if job.options.get("log_before_fit"):
        for logger in made:
            logger.log_hyperparams({"width": 8})
    return {"logger": made, "log_every_n_steps": 1, "enable_checkpointing": True}


class Tells(L.Callback):
    """Writes down at the end what the other callbacks hold."""

    def __init__(self, job: harness.Job) -> None:
        self.job = job

    def on_fit_end(self, trainer: L.Trainer, pl_module: Any) -> None:
        def tell(callback: L.Callback) -> Any:
            if isinstance(callback, ModelCheckpoint):
                names = ("best_model_path", "kth_best_model_path", "last_model_path", "_last_checkpoint_saved")
                paths = {name: os.path.relpath(getattr(callback, name) or ".", self.job.root) for name in names}
                best = {os.path.relpath(k, self.job.root): float(v) for k, v in callback.best_k_models.items()}
                return [paths, best, callback._last_global_step_saved, str(callback.kth_value)]
            if isinstance(callback, EarlyStopping):
                return {name: str(value) for name, value in callback.state_dict().items()}
            return callback.lrs if isinstance(callback, LearningRateMonitor) else None

        self.job.path("told").write_text(json.dumps([tell(callback) for callback in trainer.callbacks]))


def callbacks(job: harness.Job) -> list[L.Callback]:
    kinds = {
        "by step": lambda: ModelCheckpoint(monitor="loss_step", save_top_k=2, save_last=True, every_n_train_steps=2),
        "by validation": lambda: ModelCheckpoint(monitor="val_loss", save_top_k=2, save_last="link"),
        "newest": lambda: ModelCheckpoint(filename="newest/{step}", every_n_train_steps=1),
        "early": lambda: EarlyStopping("loss_step", patience=2, check_on_train_epoch_end=False, min_delta=1.0),
        "monitor": lambda: LearningRateMonitor(logging_interval="step", log_momentum=True),
    }
    chosen = job.options.get("callbacks", ())
    return [kinds[name]() for name in chosen] + [Tells(job)] * bool(chosen)


def csv_logs(root: Path) -> dict[str, str]:
    return {str(path.relative_to(root)): path.read_text() for path in sorted(root.rglob("metrics.csv"))}


def scalars(folder: Path) -> dict[tuple[str, int], list[float]]:
    """Every value of every (tag, step) in a folder of event files."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(folder), size_guidance={"scalars": 0}, purge_orphaned_data=False)
    accumulator.Reload()
    found = collections.defaultdict(list)
    for tag in accumulator.Tags()["scalars"]:
        for event in accumulator.Scalars(tag):
            found[tag, event.step].append(event.value)
    return dict(found)


def left_behind(job: harness.Job) -> dict[str, Any]:
    """Names of all files but event files, contents of checkpoints and logs, values of event files."""
    root = Path(job.root) / "lightning_logs"
    paths = sorted(path for path in root.rglob("*") if not path.is_dir())
    events = sorted({path.parent for path in paths if "tfevents" in path.name})
    return {
        "files": [str(path.relative_to(root)) for path in paths if path.parent not in events or path.suffix == ".yaml"],
        "folders": sorted(path.name for path in root.iterdir()),
        "events": {str(folder.relative_to(root)): scalars(folder) for folder in events},
        "metrics": csv_logs(root),
        "checkpoints": {str(path.relative_to(root)): _checkpoint(path) for path in paths if path.suffix == ".ckpt"},
        "told": json.loads(job.path("told").read_text()) if job.path("told").exists() else None,
    }


def _checkpoint(path: Path) -> tuple[str, int, str]:
    saved = torch.load(path, weights_only=True)
    return harness.digest(saved["state_dict"]), saved["global_step"], os.readlink(path) if path.is_symlink() else ""
