"""Two checkpoints side by side: configuration, files, structure, plain values, and the values of their tensors."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from resume_core.capture.runconfig import diff as config_diff
from resume_core.cli.diff.leaves import ABSENT, Leaves, Pair, leaves_of, pairs_of
from resume_core.cli.source import Source, find
from resume_core.documents import EXTRAS, TENSORS
from resume_core.naming import is_best, is_name
from resume_core.saved_header import header_of

if TYPE_CHECKING:
    from resume_core.cli.diff.values import Change

__all__ = ["Compared", "Count", "compare", "sources"]


@dataclass(frozen=True)
class Count:
    """How many tensors of a part are not the same.

    Attributes:
        num_tensors: that either side has.
        num_differ: of them; None where their elements were not compared.
    """

    num_tensors: int
    num_differ: int | None


@dataclass(frozen=True)
class Compared:
    """What is different. Each list is empty where nothing is.

    Attributes:
        a: path, place in the run and directory of the first checkpoint.
        b: of the second one.
        config: facts of the configuration, each with its severity.
        files: that are not the same bytes, or that only one has.
        structure: tensors that only one has, or that have another type or shape.
        plain: values that are no tensors: counters, schedules, positions.
        tensors: by file, those with other elements, the largest relative change first; None where they were not read.
        counts: by file, how many tensors differ.
    """

    a: dict[str, Any]
    b: dict[str, Any]
    config: list[dict[str, Any]]
    files: list[Pair]
    structure: list[Pair]
    plain: list[Pair]
    tensors: dict[str, list[Change]] | None
    counts: dict[str, Count]

    @property
    def is_same(self) -> bool:
        """Whether training would go on alike from both, as far as what is compared here tells."""
        decisive = [one for one in self.config if one["severity"] != "info"]
        decisive_plain = [pair for pair in self.plain if not pair.is_information]
        differ = [count for count in self.counts.values() if count.num_differ]
        return not (decisive or self.structure or decisive_plain or differ or self._unexplained())

    def _unexplained(self) -> list[Pair]:
        """Files with other bytes of which nothing else here says what that means."""
        explained = {TENSORS[part] for part, count in self.counts.items() if count.num_differ is not None}
        explained |= {pair.file for pair in (*self.plain, *self.structure)} | {EXTRAS}
        return [pair for pair in self.files if pair.name not in explained or ABSENT in (pair.a, pair.b)]

    def as_json(self) -> dict[str, Any]:
        """Strict JSON."""
        return asdict(self) | {"is_same": self.is_same}


def sources(a: str, b: str, c: str | None = None, *, options: Mapping[str, Any] | None = None) -> tuple[Source, Source]:
    """The checkpoints that two URLs name; the second may be a name in the run of the first.

    Args:
        a: the first one; with ``c`` a run.
        b: the second one; with ``c`` the name of the first.
        c: the name of the second one.
        options: for fsspec.

    Raises:
        CheckpointNotFoundError: there is no such checkpoint.
        CorruptCheckpointError: its manifest cannot be used.
        ValueError: a URL that cannot be meant.
        OSError: a store cannot be read.
    """
    if c is not None:
        return find(a, b, options=options), find(a, c, options=options)
    second = (a, b) if (is_name(b) or is_best(b)) and not os.path.lexists(b) else (b,)
    return find(a, options=options), find(*second, options=options)


def compare(a: Source, b: Source, progress: Callable[[str, int, int], None] | None) -> Compared:
    """What is different between two checkpoints.

    Args:
        a: the one.
        b: the other.
        progress: told the file, the bytes that were compared, and of how many; None to read no tensors.

    Raises:
        CorruptCheckpointError: one of them is damaged.
        OSError: a store cannot be read.
    """
    facts = [
        difference.as_dict() for difference in config_diff(header_of(a.manifest).config, header_of(b.manifest).config)
    ]
    sides = [{} if one.is_thinned or other.is_thinned else leaves_of(one) for one, other in ((a, b), (b, a))]
    structure, plain = pairs_of(*sides)
    parts = [part for part in TENSORS if _both_have(a, b, TENSORS[part])]
    tensors = None
    if progress is not None:
        tensors = {part: _tensors(a, b, part, progress, sides) for part in parts}
    counts = {}
    for part in parts:
        name, found = TENSORS[part], None if tensors is None else tensors[part]
        is_same = a.manifest.file(name) == b.manifest.file(name)
        counts[part] = Count(_count(a, name, sides), _num_differ(name, structure, found, is_same=is_same))
    return Compared(_side(a), _side(b), facts, list(_files(a, b)), structure, plain, tensors, counts)


def _count(source: Source, name: str, sides: Sequence[Leaves]) -> int:
    """The tensors that a file holds on either side."""
    places = {place for side in sides for place, leaf in side.items() if leaf.file == name}
    return len(places) or _num_stored(source, name)


def _num_differ(name: str, structure: list[Pair], found: list[Change] | None, *, is_same: bool) -> int | None:
    if found is None:
        return 0 if is_same else None
    return len(found) + sum(pair.file == name for pair in structure)


def _num_stored(source: Source, name: str) -> int:
    """Of a file that no structure tells of."""
    from resume_core.cli.diff.values import names_in

    return len(names_in(source, name))


def _side(source: Source) -> dict[str, Any]:
    header = source.manifest.header
    return {
        "path": source.ref.path,
        "url": source.stores[-1].url,
        "progress": asdict(source.progress),
        "time": header.get("time"),
        "metrics": header.get("metrics"),
        "weights_only": source.is_thinned,
    }


def _files(a: Source, b: Source) -> Iterator[Pair]:
    left, right = ({record.name: record for record in source.manifest.files} for source in (a, b))
    for name in dict.fromkeys([*left, *right]):
        one, two = left.get(name), right.get(name)
        if one != two:
            words = [f"{record.size_bytes} bytes" if record else ABSENT for record in (one, two)]
            yield Pair(name, words[0], words[1], file=name)


def _both_have(a: Source, b: Source, name: str) -> bool:
    return all(any(record.name == name for record in source.manifest.files) for source in (a, b))


def _tensors(
    a: Source, b: Source, part: str, progress: Callable[[str, int, int], None], sides: Sequence[Leaves]
) -> list[Change]:
    if a.manifest.file(TENSORS[part]) == b.manifest.file(TENSORS[part]):
        return []  # nothing to be read, and torch need not be imported
    from resume_core.cli.diff.values import changes

    places = [{leaf.tensor: place for place, leaf in side.items() if leaf.file == TENSORS[part]} for side in sides]
    found = changes(a, b, TENSORS[part], lambda done, total: progress(TENSORS[part], done, total), places=places)
    return sorted(found, key=lambda change: (change.relative is not None, -(change.relative or 0.0)))
