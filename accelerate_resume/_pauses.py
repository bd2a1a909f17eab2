"""The stretches of a run in which no boundary comes: what a script does behind a loop, and its validations in one."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext

__all__ = ["EPOCH_END", "EVALUATION", "Pauses"]

EPOCH_END, EVALUATION = "end of an epoch", "evaluation"


class Pauses:
    """Those of one run, one at a time; see `resume_core.session.Session.pause`.

    Attributes:
        pause: a block that may last, by its kind.
    """

    def __init__(self) -> None:
        self.pause: Callable[[str], AbstractContextManager[None]] = lambda kind: nullcontext()
        self._open: ExitStack | None = None
        self._evaluated: tuple[int | None, int | None] = (None, None)

    def begin(self, kind: str) -> None:
        """From here on, unless one goes on; that is what counts then."""
        if self._open is None:
            self._open = ExitStack()
            self._open.enter_context(self.pause(kind))

    def end(self) -> None:
        """Training goes on."""
        pause, self._open = self._open, None
        if pause is not None:
            pause.close()

    def evaluate(self, num_batches: int) -> None:
        """A script begins an evaluation inside a loop, behind so many batches of the run."""
        if self._open is None:
            self._evaluated = self._evaluated[1], num_batches
            self.begin(EVALUATION)

    def evaluates_behind(self, num_batches: int) -> bool:
        """Whether one is to be expected behind so many batches: as far from the last one as that from its own last."""
        before, last = self._evaluated
        return before is not None and last is not None and num_batches == last + (last - before)
