"""How an export goes: find, refuse what cannot be, read and check, write beside, rename."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from resume_core.cli.export.formats import WEIGHTS, check, load_writer
from resume_core.cli.export.output import check_place, placed
from resume_core.cli.export.weights import copy_weights, notes_on_weights
from resume_core.cli.source import Source, find, reading
from resume_core.cli.words import counted

__all__ = ["Exported", "Request", "export"]


@dataclass(frozen=True)
class Request:
    """What the user asked for.

    Attributes:
        url: of a run's directory, an attempt, or one checkpoint.
        out: where the export is to lie.
        format: one of `FORMATS`, or `WEIGHTS`.
        force: whether an earlier export there may be replaced.
        scratch: the run's fast local directory, which may hold copies.
        options: for fsspec.
        name: of a checkpoint in that run; None for what ``url`` names.
    """

    url: str
    out: Path
    format: str
    force: bool = False
    scratch: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    name: str | None = None


@dataclass(frozen=True)
class Exported:
    """What was exported.

    Attributes:
        path: of the checkpoint in its run.
        place: where it was taken, for people.
        notes: what the export does not hold, one sentence each.
    """

    path: str
    place: str
    notes: list[str]


def export(request: Request) -> Exported:
    """Write a checkpoint in the format of a framework.

    Raises:
        CheckpointNotFoundError: there is none, or it was deleted while it was read.
        CorruptCheckpointError: it is damaged, and no other tier has a healthy copy.
        ResumeError: it cannot become that, or what writes it is not installed.
        FileExistsError: see `check_place`.
        ValueError: a URL that cannot be meant.
        OSError: the store cannot be read, or the place not be written.
    """
    writer = None if request.format == WEIGHTS else load_writer(request.format)
    names = None if writer is None else writer.names
    check_place(request.out, force=request.force, names=names)
    source = find(request.url, request.name, scratch=request.scratch, options=request.options)
    with reading(source):
        structure = None if source.is_thinned else source.structure
        check(request.format, source.ref.path, structure)
        checkpoint = None if writer is None else source.read()
        with placed(request.out, force=request.force, names=names) as path:
            if writer is None or checkpoint is None:
                copy_weights(source.weights(), path)
                notes = notes_on_weights(structure)
            else:
                notes = writer.write(checkpoint, path)
    return Exported(source.ref.path, _place(source), notes)


def _place(source: Source) -> str:
    progress = source.progress
    inside = "its end" if progress.ends_epoch else f"{counted(progress.epoch_batch, 'batch')} into it"
    return f"step {progress.step}, batch {progress.batch}, epoch {progress.epoch}, {inside}"
