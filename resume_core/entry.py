"""What a checkpoint of the framework's own lacks: the entry, as text and tensors and nothing else.

Inside a file of the framework's it is a dict that ``torch.load(weights_only=True)`` opens, whatever the pieces hold::

    checkpoint["exact_resume"] = {"format": 1, "structure": "<JSON>", "tensors": {"pieces.rank.rng.torch": tensor, ...}}

Beside the files of a framework that writes folders it is two files for each rank: see `resume_core.pieces`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch

from resume_core.capture.runconfig import from_json, to_json
from resume_core.errors import CorruptCheckpointError
from resume_core.image import dumps, flatten, loads, loose, unflatten
from resume_core.state import Progress, RunConfig

__all__ = ["ENTRY", "FORMAT", "Entry", "Incomplete", "decode"]

ENTRY = "exact_resume"
"""The key of the entry in a checkpoint of the framework's, and the name of the folder of its files."""

FORMAT = 1


@dataclass(frozen=True)
class Entry:
    """What a checkpoint of the framework's own lacks.

    Attributes:
        key: the run's root of all data randomness.
        progress: where it was taken.
        config: what decided the run that saved.
        point: where in the framework's own sequence of hooks it was taken; the framework's business.
        pieces: the parts of a `State` that the framework does not save, under ``"training"`` and ``"rank"``.
    """

    key: int
    progress: Progress
    config: RunConfig
    point: Mapping[str, Any]
    pieces: Mapping[str, Any]

    def flat(self) -> tuple[str, dict[str, torch.Tensor]]:
        """As text, and live tensors by name.

        Raises:
            UnsupportedStateError: a value that no checkpoint can hold; names its place.
        """
        tree = {"point": dict(self.point), "pieces": dict(self.pieces)}
        header = {"key": self.key, "progress": asdict(self.progress), "config": to_json(self.config)}
        flat = flatten(tree)
        return dumps({"header": header, "tree": flat.structure}).decode("ascii"), flat.tensors

    def encode(self) -> dict[str, Any]:
        """As text and copies of tensors.

        Raises:
            UnsupportedStateError: a value that no checkpoint can hold; names its place.
        """
        text, tensors = self.flat()
        return {"format": FORMAT, "structure": text, "tensors": loose(tensors)}


@dataclass(frozen=True)
class Incomplete:
    """A checkpoint that was taken where nothing can be exact.

    Attributes:
        reason: where that was, as the end of a sentence.
    """

    reason: str

    def encode(self) -> dict[str, Any]:
        """As text."""
        return {"format": FORMAT, "incomplete": self.reason}


def decode(raw: Any, path: str) -> Entry | Incomplete:
    """What `encode` gave.

    Args:
        raw: as it was read.
        path: of the file, for messages.

    Raises:
        CorruptCheckpointError: it is damaged, or of a format that this version cannot read.
        UnsupportedStateError: a leaf of the user's own that is not registered in this process.
    """
    version = raw.get("format") if isinstance(raw, Mapping) else None
    if version != FORMAT:
        raise CorruptCheckpointError(
            f"what exact-resume added to {path} has format {version!r}, and this version reads format {FORMAT}. "
            "Install the version that wrote it, or a newer one.",
            path=path,
        )
    try:
        if "incomplete" in raw:
            return Incomplete(str(raw["incomplete"]))
        structure = loads(raw["structure"].encode("ascii"), path=path)
        header = structure["header"]
        tree = unflatten(structure["tree"], raw["tensors"], path=path)
        progress, config = Progress(**header["progress"]), from_json(header["config"])
        return Entry(int(header["key"]), progress, config, tree["point"], tree["pieces"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CorruptCheckpointError(f"what exact-resume added to {path} is damaged: {error!r}", path=path) from error
