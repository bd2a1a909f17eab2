"""Figures as people read them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

__all__ = ["age", "command_line", "counted", "first_sentence", "folded", "number", "place", "seconds"]

_MOST_CHARACTERS = 120
_UNITS = (("d", 86400), ("h", 3600), ("min", 60))


def age(time: str | None) -> str:
    """How long ago, in the largest unit that gives two or more; empty where that cannot be told."""
    try:
        seconds = (datetime.now(timezone.utc) - datetime.fromisoformat(time or "")).total_seconds()
    except (TypeError, ValueError):
        return ""
    for unit, length_s in _UNITS:
        if seconds >= 2 * length_s:
            return f"{seconds / length_s:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


def seconds(value: float) -> str:
    """A length of time in its unit, to two or three digits."""
    for unit, length_s in (("h", 3600), ("min", 60)):
        if value >= 2 * length_s:
            return f"{value / length_s:.3g} {unit}"
    return f"{value:.3g} s" if value >= 1 else f"{value * 1000:.3g} ms"


def place(progress: Mapping[str, Any]) -> str:
    """Where a checkpoint was taken."""
    parts = [f"{name} {progress.get(name)}" for name in ("step", "batch", "epoch")]
    inside: Any = progress.get("epoch_batch")
    batches = counted(inside, "batch") if type(inside) is int else f"{inside} batches"
    parts.append("its end" if progress.get("ends_epoch") else f"{batches} into it")
    if progress.get("in_window"):
        parts.append("inside an accumulation window")
    return ", ".join(parts)


def folded(name: str, width: int) -> str:
    """A name of steps with dots between them, in lines of ``width`` characters where a step does not have more."""
    lines = [""]
    for step in re.findall(r"[^.]*\.?", name):
        if lines[-1] and len(lines[-1]) + len(step) > width:
            lines.append("")
        lines[-1] += step
    return "\n".join(lines)


def counted(num: int, word: str) -> str:
    """A number of things: ``1 batch``, ``2 batches``."""
    return f"{num:,} {word}" if num == 1 else f"{num:,} {word}{'es' if word.endswith('ch') else 's'}"


def number(value: Any) -> str:
    """A metric, or any other value of JSON."""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def command_line(command: Any) -> str:
    """The arguments of a process, as they were recorded."""
    return " ".join(map(str, command)) if isinstance(command, list) else ""


def first_sentence(text: str) -> str:
    """What a message says before it goes on to reasons and remedies, without its full stop."""
    found = re.split(r"(?<=[^\s.])\.\s+(?=[A-Z`])", text.strip(), maxsplit=1)[0].rstrip(".")
    return found if len(found) <= _MOST_CHARACTERS else found[:_MOST_CHARACTERS].rpartition(" ")[0] + " ..."
