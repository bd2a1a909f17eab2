"""What a URL names: a run, an attempt in it, or one checkpoint."""

from __future__ import annotations

import re

from resume_core.storage import CheckpointRef

__all__ = ["fits", "split_url"]

# of an attempt and, below it, of a checkpoint: the beginnings will do that `resume=` takes
_NAME = re.compile(r"(.*?)/*(attempt-[0-9]{4,9}(?:-[0-9a-f]{0,4})?(?:/step-[0-9]*(?:\.[0-9]+)?)?)/*", re.DOTALL)


def split_url(url: str) -> tuple[str, str]:
    """The URL of a run's directory, and the name of an attempt or checkpoint below it, which may be empty."""
    match = _NAME.fullmatch(url)
    if match is None:
        return url, ""
    root, name = match[1], match[2]
    return root or ("/" if url.startswith("/") else "."), name


def fits(ref: CheckpointRef, name: str) -> bool:
    """Whether a checkpoint is one that the beginnings of names mean, as `split_url` gives them."""
    attempt, _, checkpoint = name.partition("/")
    return ref.attempt.startswith(attempt) and ref.name.startswith(checkpoint)
