"""A checkpoint of a Trainer's run as the ``checkpoint-N`` folder that it writes, for `resume_core.cli.export`.

Internals used (transformers 5.24): the names of the files and the keys of ``rng_state.pth``, as in
``Trainer._save_checkpoint`` and what that calls, ``TrainerState.save_to_json``, ``TrainerControl.state``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers.trainer import (
    OPTIMIZER_NAME,
    SCALER_NAME,
    SCHEDULER_NAME,
    TRAINER_STATE_NAME,
    TRAINING_ARGS_NAME,
)
from transformers.trainer_callback import TrainerControl, TrainerState
from transformers.utils import CONFIG_NAME, GENERATION_CONFIG_NAME, SAFE_WEIGHTS_NAME

from accelerate_resume._hf_arguments import rebuilt_arguments
from accelerate_resume._hf_info import ARGUMENTS, NOTES, PIECES, TOKENIZER
from resume_core.capture.rng import native_states
from resume_core.state import Checkpoint

__all__ = ["NAMES", "write"]

_TEXTS = (CONFIG_NAME, GENERATION_CONFIG_NAME)
_FILES = (
    *_TEXTS, SAFE_WEIGHTS_NAME, OPTIMIZER_NAME, SCALER_NAME, SCHEDULER_NAME, TRAINER_STATE_NAME, TRAINING_ARGS_NAME,
)  # fmt: skip

NAMES = re.compile("|".join(map(re.escape, _FILES)) + rf"|rng_state(_\d+)?\.pth|{PIECES.pattern}", re.ASCII)
"""Of the files in the folder."""


def write(checkpoint: Checkpoint, out: Path) -> list[str]:
    """Write the folder.

    Args:
        checkpoint: of a Trainer's run.
        out: its path; nothing is there.

    Returns:
        What the folder does not hold, one sentence each.

    Raises:
        OSError: it cannot be written.
    """
    out.mkdir()
    accelerated, saved = checkpoint.training["accelerator"], checkpoint.training["trainer"]
    save_file(_untied(checkpoint.model), out / SAFE_WEIGHTS_NAME, metadata={"format": "pt"})
    for name in _TEXTS:
        if name in checkpoint.info["files"]:
            (out / name).write_text(checkpoint.info["files"][name], encoding="utf-8")
    torch.save(accelerated["optimizers"][0], out / OPTIMIZER_NAME)
    torch.save(saved["scheduler"], out / SCHEDULER_NAME)
    if accelerated["scaler"] is not None:
        torch.save(accelerated["scaler"], out / SCALER_NAME)
    for rank, own in enumerate(checkpoint.ranks):
        name = "rng_state.pth" if len(checkpoint.ranks) == 1 else f"rng_state_{rank}.pth"
        torch.save(_random_states(own["rng"], is_alone=len(checkpoint.ranks) == 1), out / name)
    _state(checkpoint).save_to_json(str(out / TRAINER_STATE_NAME))
    return [*_write_extras(checkpoint.extras, out), *_lost(checkpoint)]


def _write_extras(extras: Mapping[str, Any], out: Path) -> list[str]:
    """Tokenizer and arguments, as far as the checkpoint carries them."""
    if not extras:
        return [f"the tokenizer and {TRAINING_ARGS_NAME} are not in it: the checkpoint is of an earlier version"]
    notes = [str(note) for note in extras[NOTES]]
    for name, content in extras[TOKENIZER].items():
        if PIECES.fullmatch(name) is None:
            notes.append(f"{name!r} is no name of a tokenizer's file and was left out")
            continue
        (out / name).parent.mkdir(exist_ok=True)
        (out / name).write_bytes(content.encode() if isinstance(content, str) else content)
    if extras[ARGUMENTS] is None:
        return [*notes, f"{TRAINING_ARGS_NAME} is not in it"]
    args, lost = rebuilt_arguments(extras[ARGUMENTS])
    if args is None:
        return [*notes, f"{TRAINING_ARGS_NAME} is not in it: {'; '.join(lost)}"]
    torch.save(args, out / TRAINING_ARGS_NAME)
    return [*notes, *lost]


def _untied(weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Each tensor once, by the first of its names: the other ones are tied to it again by the model itself."""
    first: dict[int, str] = {}
    for name, tensor in weights.items():
        first.setdefault(id(tensor), name)
    return {name: weights[name].contiguous() for name in first.values()}


def _random_states(saved: Mapping[str, Any], *, is_alone: bool) -> dict[str, Any]:
    python, numpy, cpu, cuda = native_states(saved)
    states = {"python": python, "numpy": numpy, "cpu": cpu}
    if cuda is None:
        return states
    return {**states, "cuda": cuda[0] if is_alone else cuda}


def _state(checkpoint: Checkpoint) -> TrainerState:
    saved = checkpoint.training["trainer"]
    first = checkpoint.ranks[0]["trainer"]
    state = TrainerState(**{**checkpoint.info["state"], **saved["state"]})
    state.total_flos += sum(own["trainer"]["loop"]["current_flos"] for own in checkpoint.ranks)
    control = TrainerControl(**saved["control"])
    state.stateful_callbacks = _by_name([*first["callbacks"], [type(control).__name__, control.state()]])
    return state


def _by_name(callbacks: Sequence[Sequence[Any]]) -> dict[str, Any]:
    """States by the names of classes; a list where there are several of one."""
    found: dict[str, list[Any]] = {}
    for name, state in callbacks:
        found.setdefault(name, []).append(state)
    return {name: states[0] if len(states) == 1 else states for name, states in found.items()}


def _lost(checkpoint: Checkpoint) -> list[str]:
    notes = []
    if CONFIG_NAME not in checkpoint.info["files"]:
        notes.append(f"there is no {CONFIG_NAME}, as the model was no PreTrainedModel")
    if checkpoint.progress.in_window:
        notes.append("the gradients of the open accumulation window are not in it")
    return notes
