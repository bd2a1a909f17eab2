"""A rehearsal of a resume: the script restores its newest checkpoint, trains on for the steps of the check, and ends.

It is asked for by environment variables, so that the script runs as it is. Nothing is written to the run's directory:
no attempt is claimed, nothing saved, recorded or deleted; plugins keep the framework's own files and loggers out of it
as well. What a script itself writes elsewhere is its own affair.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from resume_core.errors import ResumeError
from resume_core.evidence import Evidence
from resume_core.state import Progress

__all__ = ["FILE", "URL", "Drill", "Drilled", "is_rehearsal", "of_environment"]

FILE = "EXACT_RESUME_DRILL"
"""The environment variable with the file that the result is written to."""
URL = "EXACT_RESUME_DRILL_URL"
"""That with the directory of the run, as `resume_core.storage.Store.url` gives it."""


class Drilled(SystemExit):
    """The rehearsal is over. No error: the process ends with 0 when what was found is what was recorded, else 1."""


def is_rehearsal() -> bool:
    """Whether this process rehearses."""
    return bool(os.environ.get(FILE))


class Drill:
    """That of one session.

    Args:
        url: of the session's directory.
        is_first: whether this is rank 0, which writes the result.

    Raises:
        ResumeError: the rehearsal is of another directory.
    """

    def __init__(self, url: str, *, is_first: bool) -> None:
        wanted, self._file, self._is_first = os.environ.get(URL, url), Path(os.environ[FILE]), is_first
        if wanted != url:
            if is_first:
                self._file.write_text(json.dumps({"verdict": "elsewhere", "directory": url}))
            raise ResumeError(
                f"this script trains in {url}, and the rehearsal is of {wanted}: give `exact-resume drill` the "
                "directory that the script itself uses. Nothing was written."
            )
        self._has_begun = False
        self._first_step: float | None = None

    def begin(self, progress: Progress, evidence: Evidence) -> None:
        """The first batch is about to be fetched; calls after the first do nothing."""
        if not self._has_begun:
            self._has_begun = True
            evidence.begin(progress)

    def boundary(self, progress: Progress, evidence: Evidence) -> None:
        """A batch was trained on.

        Raises:
            Drilled: the check is over.
        """
        evidence.boundary(progress)
        if self._first_step is None:
            self._first_step = time.time()
        if not evidence.is_checking:
            self.end(evidence.result)

    def end(self, result: Mapping[str, Any]) -> NoReturn:
        """Write what was found, and end.

        Args:
            result: of the check; see `resume_core.evidence.checker.merge_results`.

        Raises:
            Drilled: always.
        """
        if self._is_first:
            self._file.write_text(json.dumps({"first_step": self._first_step, **result}))
        raise Drilled(int(result.get("verdict") == "differs"))


def of_environment(url: str, *, is_first: bool) -> Drill | None:
    """The rehearsal that the environment asks for; None where it does not.

    Raises:
        ResumeError: as for `Drill`.
    """
    return Drill(url, is_first=is_first) if is_rehearsal() else None
