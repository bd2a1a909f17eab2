"""What is checked before an Accelerator is taken over: its version, what it does, and that nobody has it."""

from __future__ import annotations

from typing import Any

import accelerate
from accelerate.data_loader import DataLoaderDispatcher, DataLoaderShard
from accelerate.optimizer import AcceleratedOptimizer
from accelerate.scheduler import AcceleratedScheduler
from accelerate.state import GradientState

from resume_core.capture.buckets import missing_for_buckets
from resume_core.errors import ResumeError
from resume_core.missing import refuse_missing
from resume_core.ranks import refuse_lone_rank

__all__ = ["attach_mark", "plugin_before", "probe", "refuse_attached", "refuse_unsupported"]

_MARK = "_exact_resume"
_NEEDED: dict[str, tuple[Any, tuple[str, ...]]] = {
    "Accelerator": (
        accelerate.Accelerator,
        (
            "prepare_data_loader",
            "prepare_model",
            "prepare_optimizer",
            "backward",
            "clip_grad_norm_",
            "clip_grad_value_",
            "skip_first_batches",
            "sync_gradients",
        ),
    ),
    "GradientState": (
        GradientState,
        ("dataloader_references", "num_steps", "_remove_dataloader", "_set_sync_gradients", "end_of_dataloader"),
    ),
    "DataLoaderShard": (DataLoaderShard, ("__iter__", "set_epoch", "end_of_dataloader", "remainder", "begin", "end")),
    "DataLoaderDispatcher": (DataLoaderDispatcher, ("__iter__", "set_epoch", "_fetch_batches", "end_of_dataloader")),
    "AcceleratedOptimizer": (AcceleratedOptimizer, ("step_was_skipped", "state_dict", "load_state_dict")),
    "AcceleratedScheduler": (AcceleratedScheduler, ("state_dict", "load_state_dict")),
}
_NEEDED_OF_OBJECT = ("_models", "_optimizers", "_schedulers", "_dataloaders", "_custom_objects", "step", "scaler",
                     "gradient_state", "dataloader_config", "state")  # fmt: skip
_MAX_SERVED = 15  # ranks that one reads for: so far ahead a loader knows where it stood
_SUPPORTED = ("NO", "MULTI_CPU", "MULTI_GPU")


def probe(accelerator: Any) -> None:
    """Check that the internals this module relies on are there.

    Raises:
        ResumeError: something is missing; the message names it and the version of Accelerate.
    """
    missing = [
        f"{kind}.{name}" for kind, (owner, names) in _NEEDED.items() for name in names if not hasattr(owner, name)
    ]
    missing += [f"Accelerator().{name}" for name in _NEEDED_OF_OBJECT if not hasattr(accelerator, name)]
    if not missing and not hasattr(accelerator.gradient_state, "plugin_kwargs"):
        missing = ["GradientState().plugin_kwargs"]
    if accelerator.num_processes > 1:
        needed = ("_ddp_init_helper", "_build_debug_param_to_name_mapping")
        missing += missing_for_buckets(*needed)
    refuse_missing(missing, version=f"Accelerate {accelerate.__version__}", plugin="accelerate_resume", oldest="1.4")


def refuse_unsupported(accelerator: Any) -> None:
    """Refuse what this version would not resume exactly.

    Raises:
        ResumeError: names what is not supported and what to do.
    """
    kind = accelerator.state.distributed_type
    if kind.name not in _SUPPORTED or getattr(accelerator, "parallelism_config", None) is not None:
        name = kind.name if kind.name not in _SUPPORTED else "a ParallelismConfig"
        raise ResumeError(f"{name} is not supported: train on a single device or with DistributedDataParallel")
    if accelerator.dataloader_config.dispatch_batches and accelerator.num_processes > _MAX_SERVED:
        raise ResumeError(
            f"dispatch_batches=True is supported with up to {_MAX_SERVED} processes: leave it out of "
            "DataLoaderConfiguration, so that each process reads its own batches"
        )
    refuse_lone_rank(
        accelerator.num_processes,
        "Accelerate joins them on GPUs, and elsewhere with Accelerator(cpu=True), TrainingArguments(use_cpu=True) or "
        "ACCELERATE_USE_CPU=1",
    )


def plugin_before(accelerator: Any) -> Any:
    """The plugin that ``accelerator`` has already, if any.

    Raises:
        ResumeError: something is prepared.
    """
    before = vars(accelerator).get(_MARK)
    if any((accelerator._models, accelerator._optimizers, accelerator._schedulers, accelerator._dataloaders)):
        raise ResumeError(
            "attach the ResumePlugin before accelerator.prepare(): it must see the loaders as they are"
            if before is None
            else "this Accelerator has a ResumePlugin already: for another run call accelerator.free_memory(), attach "
            "a new ResumePlugin with a directory of its own, and prepare again"
        )
    return before


def attach_mark(accelerator: Any, plugin: Any) -> None:
    """Note on ``accelerator`` that it has a plugin."""
    vars(accelerator)[_MARK] = plugin


def refuse_attached(accelerator: Any) -> None:
    """Refuse an Accelerator that has a plugin.

    Raises:
        ResumeError: it has.
    """
    if _MARK in vars(accelerator):
        raise ResumeError("this Accelerator has a ResumePlugin already: one run has one directory, so keep one of them")
