"""What a URL names: a run, an attempt in it, or one checkpoint; and the run and the name that are meant together."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from resume_core.directory import look_at
from resume_core.errors import CheckpointNotFoundError
from resume_core.naming import nothing_left, parse_name
from resume_core.storage import Attempt, Lineage

__all__ = ["CheckpointName", "open_named", "open_run", "split_url"]

CheckpointName = Annotated[
    str | None,
    typer.Argument(
        help="Of a checkpoint in it: a step (120), attempt-0002, attempt-0002/120, latest, or best.", show_default=False
    ),
]

# of an attempt and, below it, of a checkpoint: what `resume=` takes, as far as no folder of the user's looks like it
_STEP = r"(?:step-[0-9]*(?:\.[0-9]+)?|[0-9]+(?:\.[0-9]+)?|latest)"
_NAME = re.compile(
    rf"(.*?)/*(attempt-[0-9]{{1,9}}(?:-[0-9a-f]{{0,4}})?(?:/{_STEP})?|step-[0-9]+(?:\.[0-9]+)?)/*", re.DOTALL
)


def split_url(url: str) -> tuple[str, str]:
    """The URL of a run's directory, and the name of an attempt or checkpoint below it, which may be empty."""
    match = _NAME.fullmatch(url)
    if match is None:
        return url, ""
    root, name = match[1], match[2]
    return root or ("/" if url.startswith("/") else "."), name


def open_named(
    url: str, name: str | None, scratch: str | None, options: Mapping[str, Any] | None
) -> tuple[Lineage, str]:
    """The run that is meant, and the name of a checkpoint or attempt in it; empty for none.

    Args:
        url: of a run's directory, an attempt, or one checkpoint.
        name: in that run, or in that attempt; None for what ``url`` names.
        scratch: the run's fast local directory.
        options: for fsspec.

    Raises:
        ValueError: a URL that cannot be meant.
        OSError: the store cannot be read.
    """
    lineage, (root, inside) = look_at(url, scratch, options), split_url(url)
    if inside and (lineage.attempts() or lineage.damaged()):
        inside = ""  # a run may lie in a folder with such a name
    if inside:
        lineage = look_at(root, scratch, options)
    if name is None:
        return lineage, inside
    attempt = parse_name(inside).attempt
    return lineage, f"{attempt}/{name}" if attempt and not parse_name(name).attempt else name


def open_run(
    url: str, scratch: str | None, options: Mapping[str, Any] | None
) -> tuple[Lineage, list[Attempt], list[str]]:
    """A glance at a run of which all is looked at, its attempts, oldest first, and what is wrong with others.

    Args:
        url: of its directory.
        scratch: the run's fast local directory.
        options: for fsspec.

    Raises:
        CheckpointNotFoundError: there is no run.
        ValueError: a URL that cannot be meant.
        OSError: the store cannot be read.
    """
    lineage = look_at(url, scratch, options).glance()
    attempts, damaged = lineage.attempts(), [str(error) for error in lineage.damaged()]
    if not attempts and not damaged:
        raise CheckpointNotFoundError(nothing_left(lineage), path=url)
    return lineage, attempts, damaged
