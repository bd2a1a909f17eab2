"""Names in a run's directory: how they are made, and which ones are ours.

Every name is parsed strictly: only what the functions here would produce themselves counts as ours. A folder called
``attempt-1-backup`` or a file ``model (copy).safetensors`` belongs to somebody else and is never read, deleted or
counted.
"""

from __future__ import annotations

import re
from functools import lru_cache

__all__ = [
    "ATTEMPT_FILE",
    "CHECK_FILE",
    "HISTORY_FILE",
    "MANIFEST_FILE",
    "MODEL_FILE",
    "WEIGHTS_FILE",
    "attempt_folder",
    "parse_attempt_folder",
    "checkpoint_folder",
    "parse_checkpoint_folder",
    "evidence_file",
    "is_report",
    "rank_file",
    "parse_rank_file",
    "part_file",
    "is_data_file",
    "is_checkpoint_file",
    "temporary_name",
    "parse_temporary_name",
    "join_key",
    "validate_key",
]

ATTEMPT_FILE = "attempt.json"
HISTORY_FILE = "history.json"
"""Beside it: what became of the attempt."""
CHECK_FILE = "check.json"
"""Beside it: how the first steps after a resume compared with the recorded ones."""
MANIFEST_FILE = "manifest.json"
WEIGHTS_FILE = "weights.json"
"""In place of the manifest where retention has left nothing but the weights."""
MODEL_FILE = "model.safetensors"

_NUM_REMEMBERED = 1 << 16  # names that are parsed again and again while thousands of checkpoints are gone over

_SHARED_FILES = frozenset({MODEL_FILE, "training.safetensors", "training.json", "extras.json"})
_RANK_SUFFIXES = (".safetensors", ".json")

_ATTEMPT = re.compile(r"attempt-([0-9]{4,9})-([0-9a-f]{4})", re.ASCII)
_CHECKPOINT = re.compile(r"step-([0-9]{9,18})(?:\.([1-9][0-9]{0,8}))?", re.ASCII)
_RANK = re.compile(r"rank-([0-9]{5,9})(\.safetensors|\.json)", re.ASCII)
_PART = re.compile(r"part-([0-9]{5,9})\.json", re.ASCII)
_EVIDENCE = re.compile(r"evidence-([0-9]{5,9})\.json", re.ASCII)
# an empty part, `.` or `..`, a backslash or a control character
_NO_KEY = re.compile(r"(?:^|/)\.{0,2}(?:/|\Z)|[\\\x00-\x1f]")
_TEMPORARY = re.compile(r"\.(.+)\.[0-9a-f]{8}\.tmp", re.ASCII)


def attempt_folder(number: int, token: str) -> str:
    """The folder of an attempt, as in ``attempt-0003-7f3a``.

    Raises:
        ValueError: a number below 1 or above 999,999,999, or a token that is not four hexadecimal digits.
    """
    name = f"attempt-{number:04d}-{token}"
    if number < 1 or _ATTEMPT.fullmatch(name) is None:
        raise ValueError(f"no attempt can have the number {number!r} and the token {token!r}")
    return name


@lru_cache(_NUM_REMEMBERED)
def parse_attempt_folder(name: str) -> tuple[int, str] | None:
    """Number and token of an attempt's folder, None when the name is not one. The pair orders attempts."""
    match = _ATTEMPT.fullmatch(name)
    if match is None:
        return None
    number, token = int(match[1]), match[2]
    return (number, token) if number >= 1 and name == f"attempt-{number:04d}-{token}" else None


def checkpoint_folder(step: int, repeat: int = 1) -> str:
    """The folder of a checkpoint, as in ``step-000000500``, or ``step-000000500.2`` for the second of that step.

    Raises:
        ValueError: a negative or absurd step, or a repeat below 1.
    """
    name = f"step-{step:09d}" + (f".{repeat}" if repeat != 1 else "")
    if parse_checkpoint_folder(name) != (step, repeat):
        raise ValueError(f"no checkpoint can have the step {step!r} and the repeat {repeat!r}")
    return name


@lru_cache(_NUM_REMEMBERED)
def parse_checkpoint_folder(name: str) -> tuple[int, int] | None:
    """Step and repeat (1 for the first of its step) of a checkpoint's folder, None when the name is not one."""
    match = _CHECKPOINT.fullmatch(name)
    if match is None or match[2] == "1":
        return None
    step = int(match[1])
    return (step, int(match[2] or 1)) if match[1] == f"{step:09d}" else None


def rank_file(rank: int, suffix: str) -> str:
    """A file of one rank, as in ``rank-00003.safetensors``.

    Args:
        rank: the training rank.
        suffix: ``".safetensors"`` or ``".json"``.

    Raises:
        ValueError: another suffix, or a negative or absurd rank.
    """
    name = f"rank-{rank:05d}{suffix}"
    if parse_rank_file(name) != rank:
        raise ValueError(f"no file can have the rank {rank!r} and the suffix {suffix!r} (of {_RANK_SUFFIXES})")
    return name


@lru_cache(_NUM_REMEMBERED)
def parse_rank_file(name: str) -> int | None:
    """The rank a ``rank-`` file belongs to, None when the name is not one."""
    match = _RANK.fullmatch(name)
    return int(match[1]) if match is not None and match[1] == f"{int(match[1]):05d}" else None


def evidence_file(rank: int) -> str:
    """What one rank has recorded behind the saves of an attempt, as in ``evidence-00003.json``."""
    return f"evidence-{rank:05d}.json"


def is_report(name: str) -> bool:
    """Whether ``name`` is one of the small files beside ``attempt.json`` that tell of the attempt."""
    return name in (HISTORY_FILE, CHECK_FILE) or _EVIDENCE.fullmatch(name) is not None


def part_file(rank: int) -> str:
    """The part-manifest of one rank, as in ``part-00003.json``.

    Raises:
        ValueError: a negative or absurd rank.
    """
    name = f"part-{rank:05d}.json"
    if _parse_part_file(name) != rank:
        raise ValueError(f"no part-manifest can have the rank {rank!r}")
    return name


def _parse_part_file(name: str) -> int | None:
    match = _PART.fullmatch(name)
    return int(match[1]) if match is not None and match[1] == f"{int(match[1]):05d}" else None


def is_data_file(name: str) -> bool:
    """Whether ``name`` is a file that a manifest can list: state of all ranks or of one."""
    return name in _SHARED_FILES or parse_rank_file(name) is not None


def is_checkpoint_file(name: str) -> bool:
    """Whether ``name`` is one that we put into a checkpoint's folder, the leftover temporary of one included."""
    final = parse_temporary_name(name) or name
    return final in (MANIFEST_FILE, WEIGHTS_FILE) or is_data_file(final) or _parse_part_file(final) is not None


def temporary_name(name: str, token: str) -> str:
    """The name under which ``name`` is written before it is renamed; ``token`` is eight hexadecimal digits."""
    return f".{name}.{token}.tmp"


def parse_temporary_name(name: str) -> str | None:
    """The final name that a temporary was meant for, None when ``name`` is not a temporary."""
    match = _TEMPORARY.fullmatch(name)
    return match[1] if match is not None else None


def join_key(*parts: str) -> str:
    """Keys joined by ``/``; empty ones (the root) fall away."""
    return "/".join(part for part in parts if part)


def validate_key(key: str) -> str:
    """``key`` unchanged, if it is one that stays inside the store on every system.

    Raises:
        ValueError: an absolute key, an empty part, ``.`` or ``..``, a backslash or a control character.
    """
    if _NO_KEY.search(key):
        raise ValueError(f"{key!r} is not a key: keys are relative, as in 'attempt-0001-7f3a/attempt.json'")
    return key
