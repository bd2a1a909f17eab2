"""A checkpoint of a Lightning run as the file that ``Trainer.save_checkpoint`` writes, for `resume_core.cli.export`.

What such a file holds, it holds as Lightning itself made it when the run was saved (``dump_checkpoint``, Lightning
2.6). Nothing that Lightning does not write is added.

From between the last batch of an epoch and the hooks at its end Lightning writes no file by itself, and if given one it
trains a batch too many (``_TrainingEpochLoop.done`` waits for a validation). So the counters of such a checkpoint are
put to where they stand in those hooks, where ``ModelCheckpoint`` saves.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from lightning_resume._averaging import WEIGHTS_BESIDE_THE_AVERAGE
from lightning_resume._info import VERSIONS, exported_hyper_parameters
from resume_core.capture.weights import with_versions
from resume_core.state import Checkpoint, Progress

__all__ = ["NAMES", "write"]

NAMES = None
"""It is one file."""


def write(checkpoint: Checkpoint, out: Path) -> list[str]:
    """Write the file.

    Args:
        checkpoint: of a Lightning run.
        out: its path; nothing is there.

    Returns:
        What the file does not hold, one sentence each.

    Raises:
        OSError: it cannot be written.
    """
    saved = dict(checkpoint.training["checkpoint"])
    versions = _versions(checkpoint.info)
    if WEIGHTS_BESIDE_THE_AVERAGE in saved:
        saved[WEIGHTS_BESIDE_THE_AVERAGE] = with_versions(saved[WEIGHTS_BESIDE_THE_AVERAGE], versions)
    saved["loops"] = _in_hooks_of_its_end(saved["loops"], checkpoint.progress)
    hparams, notes = exported_hyper_parameters(checkpoint.info)
    with out.open("xb") as file:
        torch.save({**saved, "state_dict": with_versions(checkpoint.model, versions), **hparams}, file)
    return [*notes, *_lost(checkpoint)]


def _in_hooks_of_its_end(loops: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
    fit = loops["fit_loop"]
    epochs = {kind: dict(counts) for kind, counts in fit["epoch_progress"].items()}
    if progress.ends_epoch:
        for counts in epochs.values():
            counts["processed"] = counts["started"]
    return {**loops, "fit_loop": {**fit, "epoch_progress": epochs}}


def _versions(info: Mapping[str, Any]) -> Mapping[str, Any]:
    found = info.get(VERSIONS)
    return found if isinstance(found, Mapping) else {}


def _lost(checkpoint: Checkpoint) -> list[str]:
    progress = checkpoint.progress
    notes = []
    if progress.in_window:
        notes.append("the gradients of the open accumulation window are not in it")
    if not progress.ends_epoch and progress.epoch_batch:
        notes.append(
            f"it was saved inside epoch {progress.epoch}: Trainer.fit(ckpt_path=...) trains the rest of that epoch in "
            "another order, so on other samples"
        )
    return notes
