"""Runs without a directory: what the framework's own checkpoints lack travels in them, as one entry.

The entry is a dict of text and tensors and nothing else, so ``torch.load(weights_only=True)`` opens it whatever the
pieces hold::

    checkpoint["exact_resume"] = {"format": 1, "structure": "<JSON>", "tensors": {"pieces.rank.rng.torch": tensor, ...}}

`EmbeddedSession` takes the decisions of such a run. It is used like `resume_core.session.Session`, which starts from an
entry as well, when its directory is still empty.
"""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import asdict, dataclass
from typing import Any

from resume_core.capture.provenance import describe_code, provenance
from resume_core.capture.rng import derive
from resume_core.capture.runconfig import Accepted, check, from_json, to_json
from resume_core.errors import CorruptCheckpointError, ResumeError, UnsupportedStateError
from resume_core.framework import Framework
from resume_core.image import dumps, flatten, loads, loose, unflatten
from resume_core.origin import ORIGIN
from resume_core.policy import Changes
from resume_core.restore import report, restore_threads, warn_of_names
from resume_core.state import Ending, Progress, RunConfig, State

__all__ = ["ENTRY", "EmbeddedSession", "Entry", "Given", "Incomplete", "adopt", "look_for_entry", "new_key"]

ENTRY = "exact_resume"
"""The key of the entry in a checkpoint of the framework's."""

_FORMAT = 1
_KEY = 7  # the word that the run's key is derived from the seed with
_LOST = (
    "not exact from here on: the order and augmentation of samples, random draws such as dropout, averages of the "
    "epoch so far, gradients of a half-filled window, and hooks and a validation that were still due"
)


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

    def encode(self) -> dict[str, Any]:
        """As text and tensors.

        Raises:
            UnsupportedStateError: a value that no checkpoint can hold; names its place.
        """
        tree = {"point": dict(self.point), "pieces": dict(self.pieces)}
        header = {"key": self.key, "progress": asdict(self.progress), "config": to_json(self.config)}
        flat = flatten(tree)
        text = dumps({"header": header, "tree": flat.structure}).decode("ascii")
        return {"format": _FORMAT, "structure": text, "tensors": loose(flat.tensors)}


@dataclass(frozen=True)
class Incomplete:
    """A checkpoint that was taken where nothing can be exact.

    Attributes:
        reason: where that was, as the end of a sentence.
    """

    reason: str

    def encode(self) -> dict[str, Any]:
        """As text."""
        return {"format": _FORMAT, "incomplete": self.reason}


@dataclass(frozen=True)
class Given:
    """A checkpoint of the framework's own that a run starts from, with what it lacks.

    Attributes:
        path: its file.
        entry: what it carried.
        state: all of it, to be applied.
    """

    path: str
    entry: Entry
    state: State


def _decode(raw: Any, path: str) -> Entry | Incomplete:
    version = raw.get("format") if isinstance(raw, Mapping) else None
    if version != _FORMAT:
        raise CorruptCheckpointError(
            f"what exact-resume added to {path} has format {version!r}, and this version reads format {_FORMAT}. "
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


def look_for_entry(
    checkpoint: MutableMapping[str, Any], path: str, log: logging.Logger, *, num_ranks: int = 1
) -> Entry | None:
    """Take the entry out of a checkpoint; without a usable one, say what will not be exact.

    Args:
        checkpoint: as the framework has loaded it.
        path: its file, for messages.
        log: where messages go.
        num_ranks: processes that train together; an entry holds the state of a single one.

    Raises:
        CorruptCheckpointError: the entry is damaged, or of a format that this version cannot read.
        UnsupportedStateError: a leaf of the user's own that is not registered in this process.
    """
    raw = checkpoint.pop(ENTRY, None)
    found = Incomplete("without ResumeCallback") if raw is None else _decode(raw, path)
    if isinstance(found, Entry):
        if num_ranks == 1:
            return found
        found = Incomplete("by a single process")
    log.warning("%s was saved %s, so it is loaded as Lightning alone would: %s", path, found.reason, _LOST)
    return None


def new_key(seed: int | None) -> int:
    """The key of a new run: from the user's seed, or from entropy when there is none."""
    return secrets.randbits(64) if seed is None else derive(seed, _KEY)


def adopt(
    given: Given, framework: Framework, changes: Changes, describe: Callable[[int], RunConfig], log: logging.Logger
) -> Accepted:
    """Compare this run with the one that wrote a checkpoint, and apply it.

    Raises:
        ConfigChangedError: the run differs; nothing was loaded.
    """
    entry = given.entry
    current = describe(entry.key)
    accepted = check(entry.config, current, changes, path=given.path, step=entry.progress.step)
    warn_of_names(changes, {*entry.config, *current, ORIGIN}, log)
    framework.apply(given.state)
    report(accepted, log)
    restore_threads(accepted, log)
    progress = entry.progress
    place = (progress.step, progress.batch, progress.epoch)
    log.info("resumed at step %d, batch %d, epoch %d from %s", *place, given.path)
    return accepted


class EmbeddedSession:
    """One attempt of a run without a directory.

    Args:
        framework: captures and applies.
        changes: what may differ from the run that saved.
        log: where messages go.
    """

    blocked_s = None
    """Saving is the framework's own affair."""
    is_over = False
    """So is whether anything is left to be trained."""

    def __init__(self, framework: Framework, *, changes: Changes | None = None, log: logging.Logger) -> None:
        self._framework = framework
        self._changes = changes or Changes()
        self._log = log
        self._given: Given | None = None
        self._key: int | None = None
        self._config: RunConfig = {}
        self._warned: set[str] = set()

    # ---- restoring

    def starts_from(self, path: str | os.PathLike[str], *, named: bool) -> bool:
        """A checkpoint that the user names is always the one to go on from."""
        return True

    def give(self, given: Given) -> None:
        """The checkpoint to go on from was read, and carried an entry."""
        self._given = given

    def preamble(self) -> Mapping[str, Any]:
        """Nothing is known before the framework has read its checkpoint."""
        return {}

    def reconfigured(self) -> None:
        """The framework changed what decides a new run, by tuning it."""
        if self._key is not None:
            self._config = {}
            self._describe(self._key)

    def prepare(self, seed: int | None) -> None:
        """The loaders are asked for before `start`: tell the framework the run's key."""
        self._framework.prepare(self._run_key(seed))

    def _run_key(self, seed: int | None) -> int:
        if self._key is None:
            self._key = new_key(seed) if self._given is None else self._given.entry.key
        return self._key

    def start(self, seed: int | None) -> None:
        """Compare configurations and apply the checkpoint, if one was given.

        Args:
            seed: the user's seed, None when there is none.

        Raises:
            ConfigChangedError: the run differs; nothing was loaded.
            ResumeError: several processes train together.
        """
        num_ranks = self._framework.ranks.size
        if num_ranks > 1:
            raise ResumeError(
                f"{num_ranks} processes train together, and a checkpoint of the framework's own holds the state of "
                "one: give ResumeCallback a directory that all of them share"
            )
        key = self._run_key(seed)
        if self._given is None:
            self._describe(key)
            return
        given, self._given = self._given, None  # its tensors are not needed twice
        adopt(given, self._framework, self._changes, self._describe, self._log)

    def _describe(self, key: int) -> RunConfig:
        self._framework.prepare(key)
        if not self._config:
            self._config = {**self._framework.describe(), **describe_code(provenance())}
        return self._config

    # ---- running

    def begin(self, progress: Progress) -> None:
        """The first batch is about to be fetched."""

    def boundary(self, progress: Progress) -> bool:
        """A batch and everything that belongs to it is done; nothing is saved here."""
        return False

    def finish(self, progress: Progress, ending: Ending) -> None:
        """Everything of the fit is done; nothing is saved here."""

    def end(self, error: BaseException | None = None) -> None:
        """Training is over."""

    # ---- saving

    def carry(self, progress: Progress, point: Mapping[str, Any], pieces: Mapping[str, Any]) -> dict[str, Any]:
        """The entry for a checkpoint that the framework is writing.

        Args:
            progress: where training stands.
            point: see `Entry`.
            pieces: see `Entry`.
        """
        if self._key is None:
            return self.carry_none("before training has begun")
        try:
            return Entry(self._key, progress, self._config, point, pieces).encode()
        except UnsupportedStateError as error:
            return self.carry_none(f"with something in {error.path} that no checkpoint can hold ({error})")

    def carry_none(self, reason: str, advice: str = "") -> dict[str, Any]:
        """The entry of a checkpoint that is taken where nothing can be exact; said once for each reason."""
        if reason not in self._warned:
            self._warned.add(reason)
            self._log.warning("a checkpoint saved %s cannot be resumed exactly. %s", reason, advice)
        return Incomplete(reason).encode()
