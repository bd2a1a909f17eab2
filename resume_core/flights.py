"""What is in flight beside training, and what all ranks make of how it ended."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from resume_core.errors import SupersededError
from resume_core.writer import Writer

__all__ = ["Flight", "Outcome", "Outcomes", "merge"]

Outcome = list[str]
"""How something in flight stands, on one rank or on all, as strict JSON: a word of `_WORDS`, and what went wrong."""

Outcomes = dict[str, Outcome]
"""Those of several flights, by name."""

_WORDS = ("idle", "done", "failed", "superseded", "busy")  # of all ranks, the word furthest to the right holds
_Load = TypeVar("_Load")


def merge(found: Sequence[Mapping[str, Outcome]]) -> Outcomes:
    """What holds for all ranks."""
    return {name: _worst([outcomes[name] for outcomes in found]) for name in found[0]}


def _worst(outcomes: Sequence[Outcome]) -> Outcome:
    worst = max(range(len(outcomes)), key=lambda rank: _WORDS.index(outcomes[rank][0]))
    word, text = outcomes[worst]
    return [word, f"on rank {worst}: {text}" if text and len(outcomes) > 1 else text]


@dataclass
class _Ended:
    """What ended last, on this rank, until all ranks have heard of it."""

    outcome: Outcome
    error: BaseException | None


class Flight(Generic[_Load]):
    """One job at a time in the background, and what it is about until all ranks know how it ended."""

    def __init__(self) -> None:
        self.writer = Writer()
        self.load: _Load | None = None
        """What is in flight, None when nothing is."""
        self._ended: _Ended | None = None

    def start(self, load: _Load, job: Callable[[], None]) -> None:
        """Do ``job`` in the background.

        Raises:
            RuntimeError: something is in flight.
        """
        self.load = load  # before the job, which may look
        self.writer.submit(job)

    @property
    def has_ended(self) -> bool:
        """Whether a job has ended on this rank and was not concluded."""
        return self.load is not None and (self._ended is not None or self.writer.has_ended)

    def outcome(self) -> Outcome:
        """How it stands on this rank."""
        ended, error = self.writer.take_outcome()
        if ended:
            word = "done" if error is None else "superseded" if isinstance(error, SupersededError) else "failed"
            text = "" if error is None else str(error) if word == "superseded" else f"{type(error).__name__}: {error}"
            self._ended = _Ended([word, text], error)
        if self._ended is not None:
            return self._ended.outcome
        return ["busy" if self.writer.busy else "idle", ""]

    def conclude(self, outcome: Outcome) -> tuple[_Load, BaseException | None] | None:
        """All ranks know how it stands.

        Returns:
            What was in flight, and the error of this rank; None when it goes on, or nothing was in flight.

        Raises:
            SupersededError: a newer attempt of the run has started.
        """
        word, text = outcome
        if word in ("idle", "busy") or self.load is None:
            return None
        load, ended = self.load, self._ended
        self.load, self._ended = None, None
        error = ended.error if ended is not None else None
        if word == "superseded":
            raise error if isinstance(error, SupersededError) else SupersededError(text)
        return load, error
