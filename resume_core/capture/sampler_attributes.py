"""What samplers keep in plain attributes: an epoch, a seed, a count; saved as far as it moves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from resume_core.capture.iterators import Round

__all__ = ["SamplerAttributes"]


class SamplerAttributes:
    """Those of a chain of samplers, by the place of the sampler in it and their name.

    Args:
        chain: each but the first is what the one before draws from; as they were configured.
    """

    def __init__(self, chain: Sequence[Any]) -> None:
        self._chain = chain
        self._configured = self.now()

    def now(self) -> dict[str, Any]:
        """As they are."""
        return {
            f"{place}.{name}": value
            for place, sampler in enumerate(self._chain)
            for name, value in getattr(sampler, "__dict__", {}).items()
            if value is None or type(value) in (bool, int, float, str)
        }

    def set(self, attributes: Mapping[str, Any]) -> None:
        """Put them back, as far as there still is such a sampler."""
        for name, value in attributes.items():
            place, attribute = name.split(".", 1)
            if int(place) < len(self._chain):
                setattr(self._chain[int(place)], attribute, value)

    def moved(self, at: Round) -> tuple[dict[str, Any], dict[str, Any]]:
        """Those that moved since they were configured, and a seed: at the start of a round, and now."""
        if at.attributes is not None and at.later is not None:
            return dict(at.attributes), dict(at.later)
        plain, now = self._configured, self.now()
        first = now if at.attributes is None else at.attributes
        moved = {
            name
            for name in now.keys() & first.keys()
            if name.endswith(".seed") or name not in plain or not plain[name] == first[name] == now[name]
        }
        return {name: first[name] for name in sorted(moved)}, {name: now[name] for name in sorted(moved)}

    def begin(self, at: Round) -> None:
        """A round is about to take its first index."""
        if at.attributes is not None:
            self.set(at.attributes)
        at.attributes = self.now()

    def catch_up(self, at: Round, start: int) -> None:
        """Give them what others, not the samplers' own iteration, did to them in the part that is skipped.

        Args:
            at: the round.
            start: its samples that are skipped.
        """
        later, at.later = at.later, None
        if later and start and at.attributes is not None:
            now, first = self.now(), at.attributes
            self.set({name: value for name, value in later.items() if now.get(name) == first.get(name)})
