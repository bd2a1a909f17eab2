"""Tables in messages: plain columns, and pairs of values that stay short."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

__all__ = ["aligned", "pair"]

_WIDTH = 48  # characters of a value


def aligned(rows: Iterable[Sequence[str]]) -> str:
    """Rows of one length as aligned columns."""
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def pair(saved: str, current: str) -> tuple[str, str]:
    """Both texts short, and cut so that the first place where they differ is still in sight."""
    same = next((i for i, (a, b) in enumerate(zip(saved, current, strict=False)) if a != b), 0)
    start = max(0, same - _WIDTH // 4) if max(len(saved), len(current)) > _WIDTH else 0
    return _cut(saved, start), _cut(current, start)


def _cut(text: str, start: int) -> str:
    if len(text) <= _WIDTH:
        return text
    head, tail = ("…" if start else ""), text[start:]
    return head + (tail if len(tail) < _WIDTH else tail[: _WIDTH - 2] + "…")
