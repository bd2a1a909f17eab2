"""Values that differ between two starts of one command although nobody changed the run.

Settings of a user's own, hyperparameters above all, hold whatever a script finds: folders, times, ids of jobs, ports.
A comparison that stopped an unattended restart for these would be switched off for good. So what looks like one of
them is information, and so is what decides how long and where a run trains rather than what it computes.
"""

from __future__ import annotations

import os
import re
from typing import Any

from resume_core.capture.plain import words

__all__ = ["is_fleeting"]

_PLACES = "dir directory folder path paths file files filename root url uri bucket cwd"
_MACHINES = "host hostname node nodes machine addr port slurm env"
_IDENTITIES = "id ids uuid pid job user project entity tag tags notes version commit branch git sha run exp experiment"
_STARTS = "attempt attempts restart restarts retry retries command cmd argv"
_TIMES = "time timestamp date"
_RESOURCES = "epochs workers worker cpus gpus devices device accelerator strategy world threads processes prefetch"
_REPORTS = "log logs logger logging verbose debug progress wandb tensorboard mlflow print eval val validation test"
_KEPT = "save ckpt checkpoint checkpoints resume cache tmp temp"
_FLEETING_WORDS = frozenset(
    " ".join((_PLACES, _MACHINES, _IDENTITIES, _STARTS, _TIMES, _RESOURCES, _REPORTS, _KEPT)).split()
)
_FLEETING_NAMES = {"name", "rank", "local_rank", "global_rank", "max_steps", "num_steps", "total_steps", "steps"}
_FLEETING_NAMES |= {"train_steps", "max_train_steps", "num_training_steps"}
_CLOCKS = ((1e9, 2e10), (1e12, 2e13), (1e18, 2e19))  # seconds, milliseconds and nanoseconds since 1970
_CHANCE = re.compile(
    r"\d{4}[-_./]\d{2}[-_./]\d{2}"  # a date
    r"|\d{6}"  # one without separators, or the number of a job
    r"|\d{1,2}:\d{2}"
    r"|0x[0-9a-f]{6,}"  # an address
    r"|\b(?=[0-9a-f]*\d)(?=[0-9a-f]*[a-f])[0-9a-f]{8,}\b",  # part of a hash or of an id
    re.IGNORECASE,
)


def is_fleeting(name: str, value: Any) -> bool:
    """Whether a setting may differ without a change of the run, judged by its name and by each value in it.

    Args:
        name: as the user has it, dotted where it is nested.
        value: plain JSON.
    """
    last = name.rpartition(".")[2].lower()
    return last in _FLEETING_NAMES or not _FLEETING_WORDS.isdisjoint(words(name)) or _is_chance(value)


def _is_chance(value: Any) -> bool:
    if isinstance(value, dict):
        return any(is_fleeting(name, item) for name, item in value.items())
    if isinstance(value, list):
        return any(map(_is_chance, value))
    if isinstance(value, str):
        return os.sep in value or "\\" in value or "<" in value or bool(_CHANCE.search(value))
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and any(low <= value < high for low, high in _CLOCKS)
