"""Where a run with a directory started from, when that was a checkpoint of the framework's own.

A script keeps naming it at every restart. It is loaded once; later the run goes on from its own newest checkpoint, and
another file under that name is a change of the run.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from resume_core.capture.runconfig import ABSENT, Accepted, Difference
from resume_core.errors import ConfigChangedError
from resume_core.policy import Changes
from resume_core.storage import digest_file, open_store

__all__ = ["ORIGIN", "Origin", "check_origin", "find_origin"]

ORIGIN = "origin"
"""Its name in ``Changes(allow=...)``."""


@dataclass(frozen=True)
class Origin:
    """The identity of a file: where it lies does not belong to it.

    Attributes:
        path: absolute path or URL when it was loaded, for people.
        size_bytes: of the file.
        digest: xxh3_128 over the digests of its chunks; None when it could not be read.
    """

    path: str
    size_bytes: int | None
    digest: str | None

    def is_same(self, other: Origin) -> bool:
        """Whether both are one file, moved or not; of one that is gone only the path can tell."""
        if self.digest is None or other.digest is None:
            return self.path == other.path
        return (self.size_bytes, self.digest) == (other.size_bytes, other.digest)

    def __str__(self) -> str:
        return self.path if self.digest is None else f"{self.path} ({self.size_bytes} bytes, xxh3 {self.digest})"

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON for a manifest."""
        return asdict(self)

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any] | None) -> Origin | None:
        """What `as_dict` gave."""
        return None if saved is None else cls(saved["path"], saved["size_bytes"], saved["digest"])


def find_origin(path: str | os.PathLike[str]) -> Origin:
    """The identity of the file at ``path``, local or any fsspec URL. It is read once, whole."""
    text = os.fspath(path)
    place = text if "://" in text else os.path.realpath(os.path.expanduser(text))
    folder, _, name = place.rpartition("/")
    try:
        size_bytes, digest = digest_file(open_store(folder or "/"), name)
    except OSError:
        return Origin(place, None, None)
    return Origin(place, size_bytes, digest)


def check_origin(recorded: Origin | None, path: str, changes: Changes, log: logging.Logger, *, run: str) -> Accepted:
    """Compare a checkpoint that the user names with the one that the run started from.

    Args:
        recorded: what the run started from, None for a run that began anew.
        path: what the user names now.
        changes: ``allow=("origin",)`` lets another one pass.
        log: where messages go.
        run: the run's directory, for messages.

    Returns:
        The difference, if there is one, and why it was accepted.

    Raises:
        ConfigChangedError: it is another one; nothing was loaded.
    """
    given = find_origin(path)
    if recorded is not None and recorded.is_same(given):
        return Accepted()
    started = "began without one" if recorded is None else f"started from {recorded}"
    message = f"ckpt_path names {given}, but the run in {run} {started}"
    difference = Difference(ORIGIN, ABSENT if recorded is None else str(recorded), str(given), "run")
    if changes.accepts(ORIGIN):
        log.info("%s; allowed", message)
        return Accepted(allowed=(difference,))
    if changes.otherwise == "warn":
        log.warning("%s", message)
        return Accepted(warned=(difference,))
    raise ConfigChangedError(
        f"{message}. Nothing was loaded. To go on with this run, take ckpt_path out, give the one it started from, "
        f'or accept that it is passed over: Changes(allow=("{ORIGIN}",)). To start from the other one, use another '
        "directory.",
        differences=(difference,),
        path=run,
    )
