"""Options that several commands have."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

__all__ = ["StorageOptions", "parse_storage_options"]

StorageOptions = Annotated[
    str, typer.Option(help="JSON for fsspec.", envvar="EXACT_RESUME_STORAGE_OPTIONS", show_default=False)
]


def parse_storage_options(text: str) -> dict[str, Any]:
    """The options as a dict.

    Raises:
        typer.BadParameter: the text is something else than a JSON object.
    """
    try:
        found = json.loads(text)
    except ValueError as error:
        raise typer.BadParameter(f"the storage options are no JSON: {error}") from error
    if not isinstance(found, dict):
        raise typer.BadParameter("the storage options must be a JSON object, as in '{\"anon\": true}'")
    return found
