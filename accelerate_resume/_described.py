"""What a loader is as it is prepared, before a run moves its samplers and their generators."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from resume_core.capture.describe_data import describe_loader
from resume_core.capture.order import sampler_chain, sampler_salt
from resume_core.state import Fact

__all__ = ["described", "note_described"]

_DESCRIBED = "_exact_resume_described"


def described(loader: Any) -> tuple[int, Mapping[str, Fact]]:
    """The salt of a loader, and its facts by the ends of their names; as noted, if an earlier run had the loader."""
    noted: tuple[int, Mapping[str, Fact]] | None = vars(loader).get(_DESCRIBED)
    if noted is not None:
        return noted
    sampler = getattr(loader, "sampler", None) if loader.batch_sampler is None else loader.batch_sampler
    salt = next((salt for salt in map(sampler_salt, sampler_chain(sampler)) if salt), 0)
    return salt, describe_loader(loader, prefix="")


def note_described(prepared: Any, salt: int, facts: Mapping[str, Fact]) -> None:
    """Note on what ``prepare`` made of a loader what that was."""
    vars(prepared)[_DESCRIBED] = salt, facts
