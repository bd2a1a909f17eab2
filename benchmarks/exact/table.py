"""The matrix: as it stands in the README, and in full."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from exact.changes import SILENT as UNNOTICED
from exact.damage import NO_EFFECT, PASSED_OVER, SILENT, STOPPED

YES = "✓"
COLUMNS = (
    "samples",
    "augmentation",
    "dropout",
    "learning rate",
    "next epoch",
    "half-filled window",
    "damaged files",
    "changed settings",
    "final parameters",
)
MARKS = ("ids", "inputs", "dropout", "rate", "parameters")
Found = Mapping[str, Any]


def summary(rows: Sequence[Found]) -> list[str]:
    """The lines of the table by tool."""
    lines = ["| | " + " | ".join(COLUMNS) + " |", "|" + "---|" * (len(COLUMNS) + 1)]
    return lines + [f"| {row['title']} | " + " | ".join(_summary(row)) + " |" for row in rows]


def _summary(row: Found) -> list[str]:
    workers, window = row["cases"]["workers"], row["cases"]["window"]
    if workers["failed"]:
        return [workers["failed"]] + [""] * (len(COLUMNS) - 1)
    same, total = workers["same"], workers["after"]
    behind, kept = workers["next_epoch"]
    return [
        _samples(workers),
        _share(same["inputs"], total),
        _share(same["dropout"], total),
        _share(same["rate"], total),
        _share(kept, behind),
        _share(window["same"]["loss"], window["after"]) if not window["failed"] else "fails",
        _damaged(row["damage"]),
        _changed(row["changes"]),
        YES if workers["parameters"] else "differ",
    ]


def _share(same: int, total: int) -> str:
    return YES if same == total else f"{same} of {total}"


def _samples(found: Found) -> str:
    if found["repeated"] or found["missed"]:
        return f"{found['repeated']} twice, {found['missed']} never"
    return _share(found["same"]["ids"], found["after"])


def _damaged(found: Sequence[Sequence[str]]) -> str:
    counts = Counter(outcome for *_, outcome in found)
    counts.pop(NO_EFFECT, None)
    named = [f"{counts[kind]} {kind}" for kind in (PASSED_OVER, STOPPED, SILENT) if counts[kind]]
    return f"{YES} all passed over" if set(counts) == {PASSED_OVER} else ", ".join(named)


def _changed(found: Mapping[str, Sequence[str]]) -> str:
    noticed = sum(verdict != UNNOTICED for verdict, _ in found.values())
    return f"{noticed} of {len(found)} noticed"


def cases(rows: Sequence[Found], titles: Mapping[str, str]) -> list[str]:
    """The lines of the table by case: marks for samples, augmentation, dropout, rate and final parameters."""
    lines = ["| | " + " | ".join(row["title"] for row in rows) + " |", "|" + "---|" * (len(rows) + 1)]
    for key, title in titles.items():
        lines.append(f"| {title} | " + " | ".join(_marks(row["cases"].get(key)) for row in rows) + " |")
    return lines


def _marks(found: Found | None) -> str:
    if found is None:
        return ""
    if found["failed"]:
        return "refused" if "ResumeError" in found["failed"] else "fails"
    passed = [found["parameters"] if name == "parameters" else found["same"][name] == found["after"] for name in MARKS]
    marks = "".join(YES if each else "✗" for each in passed)
    return f"{marks} r{found['repeated']}" if found["repeated"] else marks


def damages(rows: Sequence[Found]) -> list[str]:
    """A line for each tool: what came of each damaged file, those that nothing reads left out."""
    lines = []
    for row in rows:
        counts = Counter((outcome, damage) for _, damage, outcome in row["damage"])
        text = "; ".join(f"{number} {damage} {outcome}" for (outcome, damage), number in sorted(counts.items()))
        silent = sorted({f"{name} ({damage})" for name, damage, outcome in row["damage"] if outcome == SILENT})
        lines.append(f"* {row['title']}: {text}." + (f" Silent: {', '.join(silent)}." if silent else ""))
    return lines


def changes(rows: Sequence[Found]) -> list[str]:
    """The lines of the table by what was changed."""
    names = list(rows[0]["changes"])
    lines = ["| | " + " | ".join(names) + " |", "|" + "---|" * (len(names) + 1)]
    lines += [f"| {row['title']} | " + " | ".join(row["changes"][name][0] for name in names) + " |" for row in rows]
    return lines
