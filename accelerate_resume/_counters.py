"""Counters of the user's script."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["Counters", "apply_counters", "capture_counters", "numbers"]


class Counters:
    """Values that a script counts or keeps by name: read and written as attributes, saved and restored.

    Args:
        initial: name to first value: numbers, strings, tensors, and lists, dicts or tuples of such.
    """

    def __init__(self, initial: Mapping[str, Any]) -> None:
        object.__setattr__(self, "_values", dict(initial))

    def __getattr__(self, name: str) -> Any:
        values = object.__getattribute__(self, "_values")
        if name not in values:
            raise AttributeError(f"there is no counter {name!r}: name it where the counters are made")
        return values[name]

    def __setattr__(self, name: str, value: Any) -> None:
        self.__getattr__(name)
        self._values[name] = value

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __repr__(self) -> str:
        return f"Counters({', '.join(f'{name}={value!r}' for name, value in self._values.items())})"


def capture_counters(counters: Counters) -> dict[str, Any]:
    """Their values by name."""
    return dict(counters._values)


def apply_counters(counters: Counters, saved: Mapping[str, Any]) -> None:
    """Give each counter that was saved its value."""
    known = {name: value for name, value in saved.items() if name in counters._values}
    counters._values.update(copy.deepcopy(known))


def numbers(counters: Counters) -> dict[str, float]:
    """Those that are one number."""
    kinds = (int, float)
    return {name: float(value) for name, value in counters._values.items() if isinstance(value, kinds)}
