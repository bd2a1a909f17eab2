"""A notice that the machine goes, and what a place that gives notices is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Protocol

from resume_core.preemption.web import Web

__all__ = ["Notice", "Source", "first_line", "utc"]

_LINE = 120  # characters of a foreign text that a message takes


@dataclass(frozen=True)
class Notice:
    """What a place says about the end of the machine.

    Args:
        why: the beginning of a sentence, for example ``"AWS terminates this spot instance at ..."``.
        end_s: when the machine goes, in seconds since 1970; None when that was not said.
        is_early: the machine may go, sooner than others: worth a save, and no reason to leave.
    """

    why: str
    end_s: float | None = None
    is_early: bool = False


class Source(Protocol):
    """A place that is asked for notices, by one thread alone."""

    @property
    def name(self) -> str:
        """For messages; shows no credential."""
        ...

    @property
    def every_s(self) -> float:
        """Seconds between two looks."""
        ...

    @property
    def is_chosen(self) -> bool:
        """Whether the user named it: then it is said when nothing answers there."""
        ...

    def begin(self, web: Web) -> None:
        """Find out whether notices are given there at all.

        Raises:
            NoAnswer: they are not.
        """
        ...

    def look(self, web: Web) -> Notice | None:
        """The notice that stands there now, None when there is none.

        Raises:
            NoAnswer: that cannot be known this time.
        """
        ...


def utc(end_s: float) -> str:
    """A moment as people read it."""
    return datetime.fromtimestamp(end_s, timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")


def first_line(text: str) -> str:
    """The beginning of a text that others wrote, fit for one line of a log."""
    line = next((line for line in text.splitlines() if line.strip()), "")
    return "".join(letter for letter in line.strip() if letter.isprintable())[:_LINE]
