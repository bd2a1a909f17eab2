"""What must be there, and what must not, before a Trainer is taken over; and how it is found."""

from __future__ import annotations

import dataclasses
import inspect
import sys
from typing import Any

import torch
import transformers
from transformers import trainer as _module
from transformers.trainer_callback import TrainerState

from resume_core.errors import ResumeError
from resume_core.missing import refuse_missing

__all__ = ["find_trainer", "probe", "put_first", "refuse_unsupported"]

_METHODS = {
    "_inner_training_loop": ("batch_size", "args", "resume_from_checkpoint", "trial"),
    "get_train_dataloader": (),
    "set_initial_training_values": ("args", "dataloader"),
    "_init_training_state": ("max_steps", "num_update_steps_per_epoch", "num_train_epochs", "resume_from_checkpoint"),
    "_prepare_for_training": ("max_steps", "train_dataloader", "resume_from_checkpoint"),
    "_run_epoch": ("epoch", "train_dataloader", "steps_in_epoch", "num_update_steps_per_epoch", "start_time",
                   "resume_from_checkpoint", "epochs_trained", "steps_trained_in_current_epoch"),
    "get_batch_samples": ("epoch_iterator", "num_batches"),
    "training_step": ("model", "inputs", "num_items_in_batch"),
    "_load_rng_state": ("checkpoint",),
    "_maybe_log_save_evaluate": ("tr_loss", "grad_norm", "learning_rate"),
    "_evaluate": ("trial", "ignore_keys_for_eval"),
    "_finalize_training": ("trial", "num_train_samples", "start_time"),
    "_save_checkpoint": ("model", "trial"),
    "_get_output_dir": ("trial",),
    "_load_from_checkpoint": ("resume_from_checkpoint",),
    "_load_optimizer_and_scheduler": ("checkpoint",),
    "_load_scaler": ("checkpoint",),
}  # fmt: skip
_ATTRIBUTES = ("accelerator", "args", "callback_handler", "control", "current_flos", "model", "state",
               "is_deepspeed_enabled", "is_fsdp_enabled", "is_model_parallel")  # fmt: skip
_FUNCTIONS = ("skip_first_batches", "rotate_checkpoints", "deactivate_neftune")
_FIELDS = ("global_step", "log_history", "max_steps", "epoch", "best_metric", "stateful_callbacks")


def probe(trainer: Any) -> None:
    """Check that the internals this module relies on are there.

    Raises:
        ResumeError: something is missing; the message names it and the version of transformers.
    """
    plain = transformers.Trainer
    missing = [f"Trainer.{name}" for name in _METHODS if not hasattr(plain, name)]
    missing += [f"Trainer().{name}" for name in _ATTRIBUTES if not hasattr(trainer, name)]
    missing += [
        f"Trainer.{name}({argument}=)"
        for name, arguments in _METHODS.items()
        for argument in arguments
        if hasattr(plain, name) and argument not in inspect.signature(getattr(plain, name)).parameters
    ]
    missing += [f"transformers.trainer.{name}" for name in _FUNCTIONS if not hasattr(_module, name)]
    known = {field.name for field in dataclasses.fields(TrainerState)}
    missing += [f"TrainerState.{name}" for name in _FIELDS if name not in known]
    refuse_missing(
        missing, version=f"transformers {transformers.__version__}", plugin="accelerate_resume", oldest="5.24"
    )


def refuse_unsupported(trainer: Any, trial: Any) -> None:
    """Refuse what this version would not resume exactly.

    Raises:
        ResumeError: names what is not supported and what to do.
    """
    args = trainer.args
    sharded = ("is_fsdp_enabled", "is_fsdp_xla_enabled", "is_distributed_loading_by_transformers")
    found = {
        "a hyperparameter search": trial is not None,
        "auto_find_batch_size": args.auto_find_batch_size,
        "DeepSpeed": trainer.is_deepspeed_enabled,
        "FSDP, or a model that was sharded when it was loaded": any(getattr(trainer, name, False) for name in sharded),
        "a model spread over several devices": trainer.is_model_parallel,
        "DataParallel (several GPUs in one process)": args.n_gpu > 1,
        "an IterableDataset": isinstance(trainer.train_dataset, torch.utils.data.IterableDataset),
    }
    names = [name for name, is_there in found.items() if is_there]
    if names:
        raise ResumeError(
            f"TrainerResumeCallback does not support {' and '.join(names)} yet: train on a map-style dataset, on a "
            "single device or with DistributedDataParallel (torchrun, one process for each GPU), or take it out"
        )


def find_trainer(callback: Any) -> Any:
    """The Trainer that is calling a hook of ``callback``: hooks are told everything but this. None without one."""
    frame = sys._getframe(1)
    while frame is not None:
        owner = frame.f_locals.get("self")
        if isinstance(owner, transformers.Trainer) and callback in owner.callback_handler.callbacks:
            return owner
        frame = frame.f_back  # type: ignore[assignment]
    return None


def put_first(trainer: Any, callback: Any) -> None:
    """Let the hooks of ``callback`` run before those of all others; it is added if it is not there."""
    handler = trainer.callback_handler
    handler.callbacks = [callback, *(other for other in handler.callbacks if other is not callback)]
