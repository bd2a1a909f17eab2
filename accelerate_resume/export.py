"""A checkpoint of an Accelerate run as the folder that ``save_state`` writes, for `resume_core.cli.export`.

Accelerate's own functions write it, so its files have the names that the installed version gives them: they are told
the state that was saved where they would ask a live object. Only the random states are written here, as Accelerate asks
the generators of the process, and those of a GPU that this machine need not have.

Internals used (Accelerate 1.15): ``accelerate.checkpointing.save_accelerator_state`` and ``save_custom_state``,
``accelerate.utils.RNG_STATE_NAME``, and the keys of the file of that name.
"""

from __future__ import annotations

import os
import re
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from accelerate.checkpointing import save_accelerator_state, save_custom_state
from accelerate.utils import RNG_STATE_NAME

from resume_core.capture.rng import native_states
from resume_core.errors import ResumeError
from resume_core.state import Checkpoint

__all__ = ["NAMES", "write"]

NAMES = re.compile(
    r"(model|pytorch_model)(_\d+)?\.(safetensors|bin)|(optimizer|scheduler|sampler)(_\d+)?\.bin|scaler\.pt"
    r"|random_states_\d+\.pkl|custom_checkpoint_\d+\.pkl"
)
"""Of the files in the folder."""


@dataclass(frozen=True)
class _Saved:
    """Stands for the object that a state was captured from."""

    state: Any

    def state_dict(self) -> Any:
        return self.state


def write(checkpoint: Checkpoint, out: Path) -> list[str]:
    """Write the folder.

    Args:
        checkpoint: of an Accelerate run.
        out: its path; nothing is there.

    Returns:
        What the folder does not hold, one sentence each.

    Raises:
        ResumeError: this process is one of several.
        OSError: it cannot be written.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:  # Accelerate would wait for the others, and write on one alone
        raise ResumeError("export in a process of its own, not under accelerate launch or torchrun")
    PartialState(cpu=True)  # asked by the functions below
    out.mkdir()
    saved = checkpoint.training["accelerator"]
    save_accelerator_state(
        str(out),
        _models(checkpoint),
        [_Saved(state) for state in saved["optimizers"]],
        [_Saved(state) for state in saved["schedulers"]],
        [],
        process_index=0,
        step=saved["step"],
        scaler=None if saved["scaler"] is None else _Saved(saved["scaler"]),
    )
    for place, state in enumerate(saved["registered"]):
        save_custom_state(_Saved(state), str(out), place)
    for rank, own in enumerate(checkpoint.ranks):
        torch.save({"step": saved["step"], **_random_states(own["rng"])}, out / f"{RNG_STATE_NAME}_{rank}.pkl")
    return _lost(checkpoint)


def _models(checkpoint: Checkpoint) -> list[OrderedDict[str, torch.Tensor]]:
    """A ``state_dict`` for each model, with the names that it had in Accelerate's hands."""
    return [
        OrderedDict(
            (own + name[len(prefix) :], tensor) for name, tensor in checkpoint.model.items() if name.startswith(prefix)
        )
        for prefix, own in checkpoint.info["models"]
    ]


def _random_states(saved: Mapping[str, Any]) -> dict[str, Any]:
    python, numpy, torch_state, cuda = native_states(saved)
    states = {"random_state": python, "numpy_random_seed": numpy, "torch_manual_seed": torch_state}
    return states if cuda is None else {**states, "torch_cuda_manual_seed": cuda}


def _lost(checkpoint: Checkpoint) -> list[str]:
    progress, notes = checkpoint.progress, []
    if progress.epoch_batch and not progress.ends_epoch:
        notes.append(
            f"it was saved inside epoch {progress.epoch}: after load_state, begin with that epoch and "
            f"accelerator.skip_first_batches(loader, {progress.epoch_batch}); the order of an epoch is not in it, so "
            "what is left of it are other samples"
        )
    if any(own["gradients"] for own in checkpoint.ranks):
        notes.append("the gradients of the open accumulation window are not in it")
    counters = checkpoint.ranks[0]["counters"]
    if counters:
        shown = ", ".join(f"{name}={value!r:.80}" for name, value in counters.items())
        notes.append(f"counters are not in it: {shown}")
    notes += [f"what was given to track() is not in it: {name}" for name in checkpoint.training["tracked"]]
    return notes
