"""Passes over prepared loaders: which lead, which were trained on, and where each of them stands.

A *pass* is one iterator that a script asks a loader for. It may train if gradients were enabled when it was made, and
it has trained once a backward followed a batch of it. Passes that may not train are validation: what they draw is a
function of how many batches had been trained on, and of how many validations there were since the last of them; nothing
of them is kept.

The code of an epoch runs again from its top when a run goes on inside it, and makes the passes of that epoch again, in
the same order. Each gets the place that its predecessor had: one that was through, or was left by ``break``, is over at
once; one that was open goes on behind its last batch. A pass that never trained (a validation with gradients enabled)
is gone over again. One that was made in the body of a loop that goes on, or in answer to the end of an iterator, is
*inner*: its code comes again only when that body does, so it has no successor when it is through. An iterator that the
script makes before the epochs and holds over them is *carried*: it goes on
where the one stood that was carried into the epoch.

Boundaries are the moments at which nothing is half done: the *leading* pass, which was asked first in this epoch and is
still open, is asked for its next batch and no other pass has given a batch that was not trained on; or it ends and no
other that has trained is open.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from accelerate_resume._accelerator import PreparedLoader
from resume_core.capture.iterators import Mark, Round
from resume_core.capture.loader import ResumableLoader, is_resumable

__all__ = ["Capture", "Pass", "TrackedLoader"]


@dataclass(eq=False)
class Pass:
    """One pass over a loader that may train.

    Attributes:
        index: which of the loader's passes it is, counted over the run.
        num_batches: given away, those before a resume included.
        trained: whether a backward followed one of its batches.
        fresh: whether its last batch was not trained on yet.
        over: whether nothing of it is left.
        iterator: what the script holds of it.
        begun: whether the loader was asked for a batch of it in this process.
        position: where the loader stood, saved before this process; None for its beginning.
        at_end: whether its last batch was given away, and no other was asked for.
        round: what the loader inside calls it.
        carried: whether it was made before the epoch began.
        inner: whether it was made in the body of a loop over another, or where an iterator had come to its end.
        asked_at: how many batches had been asked for, of any loader, when one of it was for the last time.
        made_at: likewise when it was made.
    """

    index: int = -1
    num_batches: int = 0
    trained: bool = False
    fresh: bool = False
    over: bool = False
    iterator: Any = None
    begun: bool = False
    position: Mapping[str, Any] | None = None
    at_end: bool = False
    round: Round | None = None
    carried: bool = False
    inner: bool = False
    asked_at: int = 0
    made_at: int = 0

    @property
    def is_open(self) -> bool:
        """Whether the script may still ask for more of it."""
        return not self.over and self.iterator is not None and self.iterator() is not None

    def take(self, saved: Mapping[str, Any]) -> None:
        """Become what `TrackedLoader.capture` saw."""
        self.index, self.num_batches = saved["pass"], saved["num_batches"]
        self.trained, self.over, self.at_end = saved["trained"], saved["over"], saved["at_end"]
        self.position, self.carried, self.inner = saved["position"], saved["carried"], saved["inner"]


@dataclass(frozen=True)
class Capture:
    """What kind of save something is captured for.

    Attributes:
        num_ranks: that train together.
        left: whether the epoch counts as over while its code runs, so that only what the script still holds lives on.
        in_body: whether the script makes the save itself, in the body of a loop perhaps.
        ended: slot of the loader and index of the pass whose end it is taken at, if it is.
    """

    num_ranks: int
    left: bool = False
    in_body: bool = False
    ended: tuple[int, int] | None = None


class TrackedLoader:
    """A prepared loader and its passes.

    Args:
        loader: what ``prepare`` made.
        slot: which loader of the run it is.
        salt: what a generator of the user's adds to the seed of the order.
        iterate: given this and a function that makes the plain iterator, makes the one that the script sees.
    """

    def __init__(
        self, loader: Any, slot: int, salt: int, iterate: Callable[[TrackedLoader, Any], Iterator[Any]]
    ) -> None:
        self.prepared = PreparedLoader(loader, lambda plain: iterate(self, plain))
        self.slot, self.salt = slot, salt
        self.handle: ResumableLoader | None = None
        self.trains = False
        self.is_uneven = False
        """Whether ranks get different numbers of batches from it."""
        self.waits = False
        """Whether it has trained, and no pass of it was made since the run went on."""
        self.is_held = False
        """Whether the script made an iterator of it before the epochs."""
        self.num_passes = 0
        self.passes: list[Pass] = []
        """Of this epoch, in the order in which they were made."""
        self.waiting: list[Pass] = []
        """Made before the run knew where it goes on."""
        self._validations = [0, 0]  # batches of the run, and validations begun since the last of them
        self._pending: list[Mapping[str, Any]] = []  # passes of this epoch that its code has not asked for again
        self._last_round: Round | None = None
        self._last_position: Mapping[str, Any] | None = None  # saved before this process

    @property
    def is_resumable(self) -> bool:
        """Whether it can be positioned."""
        return is_resumable(self.prepared.base)

    @property
    def length(self) -> int | None:
        """Batches of a pass; None when that is not known."""
        try:
            return len(self.prepared.base)
        except TypeError:
            return None

    def open(self, key: int, rank: int, num_ranks: int) -> None:
        """The run's key is known: what the loader draws is a function of it from now on."""
        if not self.is_resumable:
            return
        if self.handle is None:
            self.handle = ResumableLoader(
                self.prepared.base, key=key, slot=self.slot, rank=rank, world_size=num_ranks, sets_epoch=False
            )
        self.handle.key, self.handle.salt = key, self.salt

    def release(self) -> None:
        """The loader is the script's alone again."""
        self.prepared.release()
        if self.handle is not None:
            self.handle.release()

    # ---- passes

    def predecessor(self, *, carried: bool, loosely: bool = False) -> Mapping[str, Any] | None:
        """That of a pass which is made now.

        Args:
            carried: whether the pass is made before an epoch begins.
            loosely: whether another one will do: a script that counts epochs itself does not say when they begin.
        """
        alike = (saved for saved in self._pending if saved["carried"] == carried)
        return next(alike, self._pending[0] if loosely and self._pending else None)

    def drop_inner(self) -> list[int]:
        """Before an inner pass is bound: those before it that were through, by index; they have no successors."""
        dropped = []
        for saved in [saved for saved in self._pending if not saved["carried"]]:
            if not saved["inner"] or not (saved["over"] or saved["at_end"]):
                break
            self._pending.remove(saved)
            if saved["at_end"]:
                self.prepared.finish()
            dropped.append(saved["pass"])
        return dropped

    def bind(self, one: Pass, *, loosely: bool = False) -> None:
        """Give a new pass the place of its predecessor, or the next."""
        self.waits = False
        saved = self.predecessor(carried=one.carried, loosely=loosely)
        if saved is not None:
            self._pending.remove(saved)
            one.take(saved)
        else:
            one.index = self.num_passes
            self.num_passes += 1
        self.passes = [*(p for p in self.passes if p.trained or p.is_open), one]

    def begin(self, one: Pass) -> None:
        """The first batch of a pass in this process is about to be asked for."""
        one.begun = True
        self._begin(one.position, one.index)
        one.position = None

    def validations_since(self, num_batches: int) -> int:
        """Counts one more validation; how many there were before it since so many batches were trained on."""
        at, number = self._validations
        number = number if at == num_batches else 0
        self._validations = [num_batches, number + 1]
        return number

    def begin_validation(self, num_batches: int, number: int) -> None:
        """The first batch of a pass that may not train is about to be asked for.

        Args:
            num_batches: how far the run is.
            number: of the validation, among those since the last of these.
        """
        self._begin(None, -1 - num_batches, number)

    def _begin(self, position: Mapping[str, Any] | None, epoch: int, round_: int | None = None) -> None:
        if self.handle is None:
            return
        position = position or self._last_position  # a position in another pass: its samplers' attributes are taken
        if position is not None:
            self.handle.seek(position)
        self._last_position = None
        self.handle.begin(epoch, round_)

    def begun(self, one: Pass | None) -> None:
        """The first batch was asked for: the loader inside has begun a round."""
        if self.handle is not None:
            self._last_round = self.handle.live
            if one is not None:
                one.round = self.handle.live

    def waits_for(self, index: int) -> bool:
        """Whether the epoch's code has yet to ask again for that pass."""
        return any(saved["pass"] == index for saved in self._pending)

    @property
    def is_at_end(self) -> bool:
        """Whether nothing is left of the passes that the epoch's code has not asked for again."""
        return all(saved["over"] or saved["at_end"] for saved in self._pending if not saved["carried"])

    def finish(self) -> None:
        """The epoch's code is not run again: its passes were over, but for asking for one more batch."""
        for saved in self._pending:
            if saved["at_end"]:
                self.prepared.finish()
        self._pending = [saved for saved in self._pending if saved["carried"] and not saved["at_end"]]

    def pass_over(self, index: int, num_batches: int, num_ranks: int) -> None:
        """The next pass goes on behind so many batches, which were used elsewhere."""
        position = None
        if self.handle is not None:
            position = self.handle.passed_over(index, self.prepared.num_read(num_batches, num_ranks))
        place = {"pass": index, "num_batches": num_batches, "trained": True, "over": False, "at_end": False}
        place["inner"] = False
        self._pending, self.num_passes = [{**place, "position": position, "carried": False}], index + 1

    def leave_epoch(self, since: int | None = None) -> None:
        """The epoch's code has run: only what the script still holds lives on.

        Args:
            since: so many batches had been asked for when it ended; what was made later is of the next epoch.
        """
        self.passes = [one for one in self.passes if one.is_open]
        for one in self.passes:
            is_next = since is not None and one.made_at >= since and not (one.begun or one.inner or one.carried)
            one.carried, one.inner = not is_next, False
        self._pending = []

    def samples(self, one: Pass, num_batches: int, num_ranks: int) -> dict[str, Any]:
        """Which samples the last of ``num_batches`` of a pass has, as strict JSON; nothing where it cannot be known."""
        found: dict[str, Any] = {"num_batches": num_batches, "position": None, "ids": None, "num_samples": 0}
        if self.handle is not None and one.round is not None:
            at = Mark(one.round.epoch, one.round.round, self.prepared.num_read(num_batches, num_ranks))
            found |= self.handle.samples(at) | {"num_batches": num_batches}
        return {"loader": self.slot, "pass": one.index, **found}

    # ---- state

    def capture(self, how: Capture, *, reads: bool) -> dict[str, Any]:
        """Where it and its passes stand, as plain values.

        Args:
            how: what kind of save it is for.
            reads: whether this rank reads from it.
        """
        kept = [one for one in self.passes if one.is_open or (one.trained and not how.left and self._returns(one, how))]
        passes = [self._capture_pass(one, how, reads=reads) for one in kept]
        return {
            "loader": self.prepared.capture(),
            "seeds": self.prepared.seeds,
            "salt": self.salt,
            "trains": self.trains,
            "num_passes": self.num_passes,
            "validations": list(self._validations),
            "passes": passes if how.left else [*passes, *map(dict, self._pending)],
            "position": self._state_of(self._last_round) or self._last_position,
        }

    def _returns(self, one: Pass, how: Capture) -> bool:
        """Whether the code that goes over a pass which is through comes again when the run goes on in this epoch."""
        return not one.inner or (self.slot, one.index) == how.ended

    def _capture_pass(self, one: Pass, how: Capture, *, reads: bool) -> dict[str, Any]:
        at_end, num_batches = one.at_end, one.num_batches
        if how.in_body and one.fresh and one.is_open:  # what was not trained on is given again
            at_end, num_batches = False, num_batches - 1
        position = one.position
        if one.begun and one.is_open and not at_end and reads:
            position = self._state_of(one.round, self.prepared.num_read(num_batches, how.num_ranks))
        return {
            "pass": one.index,
            "num_batches": num_batches,
            "trained": one.trained,
            "over": not one.is_open,
            "at_end": at_end and one.is_open,
            "position": position,
            "carried": one.carried or how.left,
            "inner": one.inner and not how.left,
        }

    def _state_of(self, at: Round | None, num_batches: int | None = None) -> dict[str, Any] | None:
        if self.handle is None or at is None:
            return None
        return self.handle.state(Mark(at.epoch, at.round, at.num_batches if num_batches is None else num_batches))

    def apply(self, saved: Mapping[str, Any]) -> None:
        """Go on where `capture` saw it: the next passes take the places of their predecessors."""
        self.apply_marks(saved)
        self.salt, self.prepared.seeds = saved["salt"], saved["seeds"]
        self.trains = self.waits = saved["trains"]
        if self.handle is not None:
            self.handle.salt = self.salt
        self._pending, self._last_position = list(saved["passes"]), saved["position"]

    def apply_marks(self, saved: Mapping[str, Any]) -> None:
        """Once more what code may have changed that runs again before the first batch."""
        self.num_passes, self._validations = saved["num_passes"], list(saved["validations"])
        if not any(one.begun and one.is_open for one in self.passes):
            self.prepared.apply(saved["loader"])
