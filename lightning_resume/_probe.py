"""What must be there, and what must not, before a Trainer is taken over."""

from __future__ import annotations

import inspect
from typing import Any

import torch
import torch.distributed

from lightning_resume._package import is_a, package_of
from lightning_resume._place import missing_locals
from resume_core.capture.buckets import missing_for_buckets
from resume_core.errors import ResumeError
from resume_core.missing import refuse_missing
from resume_core.ranks import refuse_lone_rank

__all__ = ["probe", "refuse_unsupported"]

_NEEDED = {
    "fit_loop": (
        "run", "on_run_end", "_can_stop_early", "setup_data", "_load_combined_loader_states", "_data_source",
        "epoch_progress", "epoch_loop", "max_batches", "_skip_backward", "_should_reload_train_dl",
        "_last_train_dl_reload_epoch",
    ),
    "fit_loop.epoch_loop": (
        "on_run_start", "advance", "on_advance_end", "reset", "reset_restart_stage", "batch_progress", "val_loop",
        "_results", "_should_accumulate", "_num_ready_batches_reached", "automatic_optimization", "max_steps",
    ),
    "fit_loop.epoch_loop.val_loop": (
        "run", "setup_data", "reset_restart_stage", "_should_reload_val_dl", "_last_val_dl_reload_epoch",
    ),
    "_checkpoint_connector": (
        "dump_checkpoint", "resume_start", "restore_model", "restore_datamodule", "restore_callbacks",
        "restore_training_state", "_loaded_checkpoint",
    ),
    "_logger_connector": (
        "_callback_metrics", "_logged_metrics", "_progress_bar_metrics", "_first_loop_iter", "_current_fx",
    ),
    "": ("_run_sanity_check", "enable_autolog_hparams"),
    "strategy": ("setup", "reduce", "world_size"),
    "_signal_connector": ("register_signal_handlers",),
    "_accelerator_connector": ("cluster_environment",),
}  # fmt: skip
_NEEDED_BY_RANKS = {
    "torch.distributed": (torch.distributed, ("PrefixStore",)),
    "torch.distributed.distributed_c10d": (torch.distributed.distributed_c10d, ("_get_default_store",)),
}
# of callbacks and loggers, where the Trainer has them
_NEEDED_OF_KINDS = {
    "ModelCheckpoint": ("file_exists", "_save_checkpoint", "_link_checkpoint", "_remove_checkpoint"),
    "LearningRateFinder": ("lr_find",),
    "BatchSizeFinder": ("scale_batch_size",),
    "CSVLogger": ("_name", "_version", "_experiment"),
    "TensorBoardLogger": ("_name", "_version", "_experiment", "_kwargs"),
    "StochasticWeightAveraging": ("_average_model", "_initialized", "_latest_update_epoch", "momenta"),
    "WeightAveraging": ("_average_model",),
}
_NEEDED_INSIDE_HOOKS = {
    "fit_loop": ("on_advance_end", "load_state_dict", "_combined_loader_states_to_load"),
    "fit_loop.epoch_loop": ("_should_check_val_fx", "update_lr_schedulers"),
    "fit_loop.epoch_loop.val_loop": (
        "_on_evaluation_end", "_on_evaluation_model_train", "_module_mode", "_logged_outputs", "_results", "_has_run",
    ),
    "_checkpoint_connector": ("_user_managed",),
    "_logger_connector": (
        "on_batch_end", "on_epoch_end", "reset_results", "update_train_step_metrics", "update_train_epoch_metrics",
        "update_eval_epoch_metrics", "log_eval_end_metrics",
    ),
}  # fmt: skip
_SIGNATURES = {"fit_loop.epoch_loop.on_run_start": 1, "fit_loop.epoch_loop.on_advance_end": 1, "strategy.setup": 1}


def _reach(root: Any, path: str) -> Any:
    for name in filter(None, path.split(".")):
        root = getattr(root, name)
    return root


def probe(trainer: Any) -> None:
    """Check that the internals this module relies on are there.

    Raises:
        ResumeError: something is missing or takes other arguments; the message names it and the Lightning version.
    """
    missing = package_of(trainer).missing()
    missing += [
        ".".join(filter(None, ("Trainer", path, name)))
        for path, names in (*_NEEDED.items(), *_NEEDED_INSIDE_HOOKS.items())
        for name in names
        if not hasattr(_reach(trainer, path), name)
    ]
    missing += missing_locals(package_of(trainer))
    missing += [
        f"{kind}.{name}"
        for kind, names in _NEEDED_OF_KINDS.items()
        for part in (*trainer.callbacks, *trainer.loggers)
        for name in names
        if is_a(part, kind) and not hasattr(part, name)
    ]
    missing += [
        f"Trainer.{path}() with {count} argument(s)"
        for path, count in _SIGNATURES.items()
        if not missing and len(inspect.signature(_reach(trainer, path)).parameters) != count
    ]
    if trainer.world_size > 1:
        missing += [
            f"{owner}.{name} (torch {torch.__version__})"
            for owner, (module, names) in _NEEDED_BY_RANKS.items()
            for name in names
            if not hasattr(module, name)
        ]
        missing += missing_for_buckets()
    refuse_missing(missing, version=package_of(trainer).version, plugin="lightning_resume", oldest="2.6")


def refuse_unsupported(trainer: Any) -> None:
    """Refuse what this version would not resume exactly.

    Raises:
        ResumeError: names what is not supported and what to do.
    """
    package = package_of(trainer)
    kinds = (package.ModelPruning,)
    inexact = [type(callback).__name__ for callback in trainer.callbacks if isinstance(callback, kinds)]
    if inexact:
        raise ResumeError(f"{inexact[0]} keeps state that is not restored yet: take it out, or train without resuming")
    if trainer.strategy.restore_checkpoint_after_setup:
        raise ResumeError(f"{type(trainer.strategy).__name__} is not supported: train on a single device or with DDP")
    refuse_lone_rank(trainer.world_size, 'let the Trainer know of all, for example Trainer(devices=8, strategy="ddp")')
