"""Attempts that have ended, and what they have told of themselves."""

from __future__ import annotations

import logging

from resume_core.policy import SaveEvery
from resume_core.storage import Lineage, open_store, read_history

LOG = logging.getLogger("test")
EVERY_2 = SaveEvery(steps=2, minutes=None)

SEEN = {"time": "2026-11-30T11:00:00.000+00:00", "up_s": 1.0, "trained_s": 1.0, "step": 1, "batch": 1, "epoch": 0}
TOLD = {"attempt": "a", "host": "h", "started": SEEN["time"], "first_batch_s": None, "resumed": None, "seen": SEEN}
TOLD |= {"cause": None, "why": None, "earlier": {}, "saves": []}


def lineage(directory):
    return Lineage(open_store(directory))


def newest(directory):
    found = lineage(directory)
    return read_history(found.store, found.newest().name)


def stop(run, error=None, *, killed=False):
    """The end of an attempt; a killed one says nothing at its end, but what it had written stays."""
    if killed:
        history = run.session._history
        if history._writing is not None:
            history._writing.join()
        history._write()
        history._writing.join()
        history._put = None
    run.session.end(error)
