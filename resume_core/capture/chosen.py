"""What only the user knows of a run, and what code it runs, as facts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import xxhash

from resume_core.capture.provenance import describe_code
from resume_core.errors import ResumeError
from resume_core.policy import Changes
from resume_core.state import Fact

__all__ = ["describe_chosen", "describe_sample_ids"]


def describe_chosen(changes: Changes, found: Mapping[str, Any]) -> dict[str, Fact]:
    """The ids of samples that the user gave, and the code.

    Args:
        changes: of the run.
        found: its `provenance`.

    Raises:
        ResumeError: the file of the ids cannot be read.
    """
    return describe_code(found) | describe_sample_ids(changes.sample_ids)


def describe_sample_ids(given: Any) -> dict[str, Fact]:
    """How many ids there are, and a digest of them in their order; the same for a list and for a file of its lines.

    Args:
        given: as `Changes` has it: the ids, the path of a file with one a line, or None: then a
            run that has them differs in nothing.

    Raises:
        ResumeError: the file cannot be read.
    """
    if given is None:
        return {f"sample_ids.{name}": Fact(None, "info") for name in ("count", "digest")}
    data = _lines(given) if isinstance(given, str) else "\n".join(given).encode("utf-8", "surrogateescape")
    count = data.count(b"\n") + 1 if data else 0
    return {"sample_ids.count": Fact(count), "sample_ids.digest": Fact(xxhash.xxh3_64_hexdigest(data))}


def _lines(path: str) -> bytes:
    try:
        return Path(path).read_bytes().replace(b"\r\n", b"\n").strip(b"\n")
    except OSError as error:
        raise ResumeError(
            f"Changes(sample_ids={path!r}) cannot be read: {error}. Give a file with one id of a sample a line, or a "
            "list of ids, or take it out: then the content of the data is not compared.",
            path=path,
        ) from error
