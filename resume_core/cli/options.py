"""Options that several commands have."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Annotated, Any

import typer

__all__ = ["STORAGE_OPTIONS", "AsJson", "Scratch", "StorageOptions", "parse_storage_options"]

STORAGE_OPTIONS = "EXACT_RESUME_STORAGE_OPTIONS"
"""The environment variable that holds a JSON object of them; those on the command line win."""

StorageOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--storage-option",
        "--storage-options",
        metavar="NAME=VALUE",
        help=f"For fsspec; may be given again, and may be a JSON object of several. [env: {STORAGE_OPTIONS}]",
        show_default=False,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Scratch = Annotated[str | None, typer.Option(help="The run's scratch, where copies may lie.", show_default=False)]


def parse_storage_options(given: Sequence[str] | None) -> dict[str, Any]:
    """The options as a dict, those of the environment among them.

    Args:
        given: each ``name=value``, where the value is JSON or else text, or a JSON object.

    Raises:
        typer.BadParameter: a text is neither.
    """
    options: dict[str, Any] = {}
    for text in (os.environ.get(STORAGE_OPTIONS) or "{}", *(given or ())):
        options |= _object(text) if text.lstrip()[:1] in ("{", "[") or "=" not in text else _pair(text)
    return options


def _pair(text: str) -> dict[str, Any]:
    name, _, value = text.partition("=")
    try:
        return {name.strip(): json.loads(value)}
    except ValueError:
        return {name.strip(): value}


def _object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise typer.BadParameter(f"storage options are NAME=VALUE or a JSON object, got {text!r}: {error}") from error
    if not isinstance(found, dict):
        raise typer.BadParameter("the storage options must be a JSON object, as in '{\"anon\": true}'")
    return found
