"""Which facts a release takes of a run, so that a checkpoint of an older one is not refused for those it lacks."""

from __future__ import annotations

import re
from collections.abc import Mapping

from resume_core.state import Fact

__all__ = ["FACTS", "FACTS_VERSION", "is_new"]

FACTS = "facts"
"""The name of the fact that says which of these lists a run was described by. Lists without it are the first."""

FACTS_VERSION = 4

_NEW: dict[int, re.Pattern[str]] = {
    2: re.compile(
        r"environment\..*|modules\..*|(?:data_)?hparams\..*|model_config\..*|sample_ids\..*|trainer\..*"
        r"|data\.\d+\.(?:collate_fn|worker_init_fn)(?:\..*)?|data\..*\.files(?:\..*)?"
    ),
    3: re.compile(r"scheduler\..*(?:lambda|fn)s?\.\d+\..*"),
    4: re.compile(r"scheduler\..*(?:lambda|fn)s?\.\d+\.[^.]+\.\D.*"),  # attributes that such a function reads
}
"""By version: names that are facts since then."""


def is_new(name: str, saved: Mapping[str, Fact]) -> bool:
    """Whether the release that described ``saved`` could not know the fact ``name``.

    Args:
        name: of a fact that ``saved`` lacks.
        saved: of a checkpoint.
    """
    version = saved[FACTS].value if FACTS in saved else 1
    if not isinstance(version, int):
        return False
    return any(since > version and pattern.fullmatch(name) for since, pattern in _NEW.items())
