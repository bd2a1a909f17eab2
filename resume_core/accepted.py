"""What comes of differences between a run and its checkpoint that were accepted: what is said, and what may follow."""

from __future__ import annotations

import logging
import os

import torch

from resume_core.capture.as_saved import goes_on_as_saved
from resume_core.capture.runconfig import Accepted, Difference, idle_names, idle_text, table
from resume_core.policy import Changes

__all__ = ["consequences", "is_same_machine", "report", "restore_threads", "warn_of_names"]

_THREADS = "environment.threads"


def warn_of_names(changes: Changes, known: set[str], log: logging.Logger) -> None:
    """Say which names in ``changes`` no run has: a misspelt one would be found out only when it is needed."""
    idle = idle_names(changes, known)
    if idle:
        log.warning("Changes(allow=...) names what no run has: %s", idle_text(idle, known))


def report(accepted: Accepted, log: logging.Logger) -> None:
    """Say which differences were accepted, and why."""
    warned = 'the run differs from its checkpoint (Changes(otherwise="warn")):\n%s'
    kept = "accepted, and not applied: the run goes on with the saved values of these (see the docs of `changes`):\n%s"
    not_applied = tuple(d for d in (*accepted.allowed, *accepted.warned) if goes_on_as_saved(d.name))
    applied = tuple(d for d in accepted.allowed if d not in not_applied)
    hopes = any(d.name != "seed" for d in not_applied)  # another seed at each start is nothing to be told of
    inexact = (
        "from here on the run may not be what it would have been, bit for bit: it goes on, and since its checkpoint "
        "these have changed:\n%s"
    )
    others = tuple(difference for difference in accepted.info if difference not in accepted.inexact)
    for level, text, differences in (
        (logging.WARNING, warned, tuple(d for d in accepted.warned if d not in not_applied)),
        (logging.WARNING if hopes else logging.INFO, kept, not_applied),
        (logging.WARNING, inexact, accepted.inexact),
        (logging.INFO, "changes that were allowed:\n%s", applied),
        (logging.INFO, "what else differs, and alters no run:\n%s", others),
    ):
        if differences:
            log.log(level, text, table(differences))


def restore_threads(accepted: Accepted, log: logging.Logger) -> None:
    """Let torch compute with as many threads as the run did: sums are split over them and round accordingly."""
    difference = next((d for d in accepted.info if d.name == _THREADS), None)
    if difference is None or not isinstance(difference.saved, int):
        return
    if _has_cores(difference):
        torch.set_num_threads(difference.saved)
        log.info("torch computes with %d threads again, as the run did before", difference.saved)
    else:
        log.warning(
            "the run used %d threads and this machine has %s: results may differ in the last bits",
            difference.saved,
            os.cpu_count(),
        )


def consequences(accepted: Accepted) -> list[str]:
    """Names of accepted changes that alter what is computed: all but settings that go on as they were saved."""
    decisive = (*accepted.allowed, *accepted.warned)
    return [d.name for d in decisive if not goes_on_as_saved(d.name)]


def is_same_machine(accepted: Accepted) -> bool:
    """Whether what is computed comes out as where it was saved, to the last bit, once `restore_threads` was called."""
    threads = [d for d in accepted.info if d.name == _THREADS]
    return all(d in threads for d in accepted.inexact) and all(map(_has_cores, threads))


def _has_cores(threads: Difference) -> bool:
    """Whether as many threads can be had as were used."""
    return isinstance(threads.saved, int) and threads.saved <= (os.cpu_count() or 1)
