"""What can be said of one checkpoint from its small files and the sizes of the large ones; no tensor is read."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from resume_core.cli.divergence import Divergence, find_divergence
from resume_core.cli.source import Source, find
from resume_core.cli.tensors import groups, tensors_of
from resume_core.documents import STRUCTURE
from resume_core.errors import CorruptCheckpointError
from resume_core.heard import read_heard
from resume_core.storage import Manifest, PastAttempt
from resume_core.storage.newer import by_step
from resume_core.storage.paths import MODEL_FILE, parse_rank_file
from resume_core.storage.presence import flaws

__all__ = ["Group", "Part", "Shown", "facts"]

_WHAT = {
    MODEL_FILE: ("weights", "weights and buffers, usable alone"),
    "training.safetensors": ("training", "optimizer, schedulers, callbacks, loops"),
    STRUCTURE: ("structure", "what is around the tensors"),
    "extras.json": ("extras", "for exports alone"),
}
_RANKS = "ranks"
_HEADER = ("progress", "reason", "time", "fit", "finished", "trained_s", "timings", "metrics", "provenance", "config")


@dataclass(frozen=True)
class Part:
    """Files of a checkpoint that belong together.

    Attributes:
        name: a word for them.
        what: what is in them.
        files: their names.
        size_bytes: of all of them.
    """

    name: str
    what: str
    files: list[str]
    size_bytes: int


@dataclass(frozen=True)
class Group:
    """Tensors below one place of a part.

    Attributes:
        part: the word for it.
        place: their common path.
        num_tensors: how many.
        size_bytes: of all of them.
    """

    part: str
    place: str
    num_tensors: int
    size_bytes: int


@dataclass(frozen=True)
class Shown:
    """One checkpoint.

    Attributes:
        path: below the run's directory.
        url: of that directory.
        tiers: where it is committed, nearest first.
        can_continue: whether training can go on from it; otherwise it holds weights only, or is damaged.
        problems: what is missing or has another size, a sentence each. Contents are what ``verify`` checks.
        world_size: ranks that saved it.
        size_bytes: of its files.
        weights_bytes: what a file of the weights alone would have.
        weights_files: how many of those are as large as it.
        num_parameters: elements of its weights and buffers; None where only a file that is damaged tells.
        parts: the largest first.
        groups: its tensors by place; empty where only weights are left.
        diverged: since when the loss was no finite number when it was taken; None where it was one.
        header: what it says of itself: where it was taken, why and when, metrics, provenance, configuration.
    """

    path: str
    url: str
    tiers: list[str]
    can_continue: bool
    problems: list[str]
    world_size: int
    size_bytes: int
    weights_bytes: int
    weights_files: float | None
    num_parameters: int | None
    parts: list[Part]
    groups: list[Group]
    diverged: Divergence | None
    header: dict[str, Any]

    def as_json(self) -> dict[str, Any]:
        """Strict JSON."""
        return asdict(self)


def facts(
    url: str, name: str | None = None, *, scratch: str | None = None, options: Mapping[str, Any] | None = None
) -> Shown:
    """Look at one checkpoint; of a run, or an attempt, at its newest.

    Args:
        url: of a run, an attempt or a checkpoint.
        name: of one in that run; None for what ``url`` names.
        scratch: the run's fast local directory.
        options: for fsspec.

    Raises:
        CheckpointNotFoundError: there is none, or it was deleted while it was read.
        CorruptCheckpointError: its manifest cannot be used.
        ValueError: a URL that cannot be meant.
        OSError: the store cannot be read.
    """
    source = find(url, name, scratch=scratch, options=options)
    manifest = source.manifest
    problems = list(_problems(source))
    tensors = _tensors(source, problems)
    if problems:
        source.check_there()
    parts = _parts(manifest)
    total = sum(part.size_bytes for part in parts)
    weights = sum(record.size_bytes for record in manifest.files if record.name == MODEL_FILE)
    return Shown(
        path=source.ref.path,
        url=source.stores[-1].url,
        tiers=[store.url for store in source.stores],
        can_continue=not source.is_thinned and not problems,
        problems=problems,
        world_size=manifest.world_size,
        size_bytes=total,
        weights_bytes=weights,
        weights_files=round(total / weights, 3) if weights else None,
        num_parameters=tensors and tensors[0],
        parts=parts,
        groups=tensors[1] if tensors else [],
        diverged=_diverged(source),
        header={name: manifest.header[name] for name in _HEADER if name in manifest.header},
    )


def _diverged(source: Source) -> Divergence | None:
    """Where the loss was lost before the checkpoint was taken."""

    attempts = source.lineage.attempts()

    def past_of(attempt: str) -> PastAttempt | None:
        with suppress(CorruptCheckpointError):
            return read_heard(source.lineage, attempt, attempts)
        return None

    owner = next((one for one in attempts if one.name == source.ref.attempt), None)
    found = None if owner is None else find_divergence(source.lineage, owner, attempts, past_of)
    return found if found is not None and by_step(source.ref.name)[0] >= found.step else None


def _parts(manifest: Manifest) -> list[Part]:
    found: dict[str, Part] = {}
    for record in manifest.files:
        of_rank = parse_rank_file(record.name) is not None
        each = f"of each of {manifest.world_size} ranks" if manifest.world_size > 1 else "of the one rank"
        name, what = (_RANKS, f"random streams and positions {each}") if of_rank else _WHAT[record.name]
        before = found.get(name, Part(name, what, [], 0))
        found[name] = Part(name, what, [*before.files, record.name], before.size_bytes + record.size_bytes)
    return sorted(found.values(), key=lambda part: -part.size_bytes)


def _problems(source: Source) -> Iterator[str]:
    """Files that are not there in their sizes, on any tier that should have them."""
    sizes = {record.name: record.size_bytes for record in source.manifest.files}
    for store in source.stores:
        yield from flaws(store, source.ref, sizes)


def _tensors(source: Source, problems: list[str]) -> tuple[int, list[Group]] | None:
    """Elements of the weights, and the tensors by their places; None where nothing tells."""
    if source.is_thinned:
        return None
    try:
        parts = {part: tensors_of(source.structure[part], source.ref.path) for part in ("model", "training")}
    except CorruptCheckpointError as error:
        problems.append(str(error))
        return None
    number = sum(math.prod(tensor.shape) for tensor in parts["model"])
    found = [
        Group(part, place, num, size)
        for part, tensors in parts.items()
        for place, (num, size) in ({"": _whole(tensors)} if part == "model" else groups(tensors, part)).items()
        if num
    ]
    return number, found


def _whole(tensors: Sequence[Any]) -> tuple[int, int]:
    return len(tensors), sum(tensor.size_bytes for tensor in tensors)
