"""What a checkpoint can become: the formats, and which package writes each."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from resume_core.errors import ResumeError
from resume_core.state import Checkpoint

__all__ = ["FORMATS", "WEIGHTS", "Format", "Writer", "check", "load_writer"]

WEIGHTS = "safetensors"
"""The format that every checkpoint can become."""


@dataclass(frozen=True)
class Format:
    """The format of a framework.

    Attributes:
        framework: its name, for people.
        package: to be installed for it, an extra of ours.
        module: has a `Writer`'s attributes.
        marks: keys of ``State.training`` that runs of that framework have; of several that fit it is the one with most.
    """

    framework: str
    package: str
    module: str
    marks: frozenset[str]


FORMATS: Mapping[str, Format] = {
    "lightning": Format("Lightning", "lightning", "lightning_resume.export", frozenset({"checkpoint"})),
    "accelerate": Format("Accelerate", "accelerate", "accelerate_resume.export", frozenset({"accelerator"})),
    "trainer": Format(
        "the Hugging Face Trainer", "trainer", "accelerate_resume.trainer_export", frozenset({"accelerator", "trainer"})
    ),
}
"""By the name on the command line; the packages are named here and not imported, as the core knows no framework."""


@dataclass(frozen=True)
class Writer:
    """What writes a format.

    Attributes:
        write: given a checkpoint and a path at which nothing is, writes a file or a folder there, and returns what it
            does not hold, one sentence each.
        names: of the files in such a folder, relative to it; None when it is one file.
    """

    write: Callable[[Checkpoint, Path], list[str]]
    names: re.Pattern[str] | None


def check(name: str, path: str, structure: Mapping[str, Any] | None) -> None:
    """Refuse a format that a checkpoint cannot become.

    Args:
        name: of the format.
        path: of the checkpoint, for messages.
        structure: of the checkpoint, None when only its weights are left.

    Raises:
        ResumeError: says what it can become.
    """
    if name == WEIGHTS:
        return
    if structure is None:
        raise ResumeError(
            f"{path} holds weights only, as Keep(thin_after=...) asks for: it can become --format {WEIGHTS} alone, "
            f"not {name}",
            path=path,
        )
    fitting = [known for known, found in FORMATS.items() if found.marks <= structure["training"].keys()]
    own = sorted(fitting, key=lambda known: len(FORMATS[known].marks))[-1:]
    if name not in own:
        run = f"of a run with {FORMATS[own[0]].framework}" if own else "of a framework that this version does not know"
        can = " or ".join(f"--format {known}" for known in [*own, WEIGHTS])
        raise ResumeError(f"{path} is {run}: it can become {can}, not {name}", path=path)


def load_writer(name: str) -> Writer:
    """The writer of a framework's format.

    Raises:
        ResumeError: the framework is not installed.
    """
    found = FORMATS[name]
    try:
        module = importlib.import_module(found.module)
    except ImportError as error:
        raise ResumeError(
            f'--format {name} needs {found.package}: pip install "exact-resume[{found.package}]" ({error})'
        ) from error
    return Writer(module.write, module.NAMES)
