"""What an attempt does before it writes: its claim, the look at the scratch, and what the run has lived through."""

from __future__ import annotations

import logging
from dataclasses import asdict
from typing import Any

from resume_core.beginning import Beginning
from resume_core.claims import claim
from resume_core.errors import ResumeError
from resume_core.goodput import account
from resume_core.history import History
from resume_core.policy import Keep
from resume_core.ranks import Ranks
from resume_core.saves import Saves
from resume_core.schedule import Cadence
from resume_core.scratch import admit
from resume_core.state import Progress
from resume_core.storage import Attempt, Lineage

__all__ = ["Opening"]


class Opening:
    """That of one attempt.

    Args:
        beginning: what it goes on from.
        lineage: of the run.
        ranks: those that train together.
        saves: told where they go.
        history: told what it is of.
        cadence: told how often the run was interrupted before.
        log: where messages go.
    """

    def __init__(
        self,
        beginning: Beginning,
        lineage: Lineage,
        ranks: Ranks,
        *,
        saves: Saves,
        history: History,
        cadence: Cadence,
        log: logging.Logger,
    ) -> None:
        self._beginning, self._lineage, self._ranks = beginning, lineage, ranks
        self._saves, self._history, self._cadence, self._log = saves, history, cadence, log

    def open(self, progress: Progress, *, keep: Keep, size_bytes: int, anew: bool) -> Attempt:
        """Claim the attempt. What is on the scratch alone becomes its first checkpoint.

        Args:
            progress: where training stands.
            keep: which checkpoints stay.
            size_bytes: what a checkpoint is taken to need.
            anew: whether the user begins a new run in the same directory.

        Raises:
            ResumeError: not all ranks see the claim.
            OSError: the store cannot be written.
        """
        beginning, restored = self._beginning, self._beginning.restored
        # a fit after another one goes on from live objects that are what that one had saved at its end
        origin = restored.ref if restored else beginning.fits.origin
        attempt = claim(self._lineage, self._ranks, origin=origin, info=self._info(keep), anew=anew)
        scratch = admit(self._lineage.tiers, attempt, size_bytes, self._ranks, self._log)
        self._saves.open(attempt, scratch, is_first=self._ranks.is_first)
        if self._ranks.is_first:
            self._open_history(attempt, progress if restored is not None else None)
        if restored is not None and not self._ranks.share("the tiers", restored.is_promoted):
            place = self._ranks.agree("the copy", None, lambda _: self._saves.next_place(progress.step))
            self._saves.adopt(restored.ref, place, progress)
        return attempt

    def _info(self, keep: Keep) -> dict[str, Any]:
        """What is kept with the attempt."""
        beginning, restored = self._beginning, self._beginning.restored
        return {
            "provenance": dict(beginning.provenance),
            "accepted": beginning.passed_over.record() + beginning.accepted.record(),
            "key": beginning.key,
            "keep": asdict(keep),
            "restored_digest": restored and restored.digest,
            "restored_header": restored and dict(restored.told),
            **beginning.origin_fact,
        }

    def _open_history(self, attempt: Attempt, resumed: Progress | None) -> None:
        """On rank 0. What earlier attempts have met with counts for the cadence, and for no more than that."""
        self._history.open(self._lineage.store, attempt, resumed)
        if not self._cadence.adapts or attempt.parent is None:
            return
        try:
            found = account(self._lineage.glance(), attempt.name, self._log)
        except (OSError, ResumeError) as error:
            self._log.info("how often this run was interrupted before is not known: %s", error)
            return
        self._cadence.observe(found.interruptions, found.up_s)
