"""Scripts that save by themselves, wherever they are, and may count epochs and skip batches by themselves as well.

Such a save is gone on from in the body of the loop that trains, if one is under way: behind the last batch that was
trained on. Otherwise the epoch counts as over, and the next one begins.

A script that never asks the run for its epochs (`is_asked`) goes on as Accelerate's examples do: inside an epoch it
goes over its loader again, or over what ``skip_first_batches`` makes of it, and gets what is left; after the last batch
of an epoch it begins with the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from accelerate_resume._passes import Capture, Pass, TrackedLoader
from accelerate_resume._place import AT_FETCH, BETWEEN, Place
from accelerate_resume._tracker import Tracker

__all__ = ["ScriptTracker"]


@dataclass
class ScriptTracker(Tracker):
    """Follows a run of such a script.

    Attributes:
        begin: begins the run, when a batch is asked for that may be trained on; None where the script has to do it.
        is_foreign: whether a loader is gone over that is not followed.
        tell: called with what users should know, once with each sentence.
    """

    begin: Callable[[], None] | None = None
    is_foreign: Callable[[], bool] = lambda: False
    tell: Callable[[str], None] = lambda note: None
    _said: set[str] = field(default_factory=set)
    _last_save: Place | None = None
    _first_step: int = 0
    _late: set[int] = field(default_factory=set)  # slots of loaders that were prepared in an epoch whose end is unknown
    _reenters: bool = False  # whether the script goes on in the epoch whose last batch was trained on

    def _say(self, note: str) -> None:
        if note not in self._said:
            self._said.add(note)
            self.tell(note)

    def track(self, loader: Any, salt: int) -> TrackedLoader:
        """See `Tracker.track`."""
        tracked = super().track(loader, salt)
        if self.finds_epochs and self.is_running and self.has_trained:
            self._late.add(tracked.slot)
        return tracked

    # ---- beginning, and going on elsewhere

    def ask_to_begin(self) -> None:
        """A batch is asked for that may be trained on, and the run has not begun."""
        if self.begin is not None:
            self.begin()

    @property
    def has_trained(self) -> bool:
        """Whether a batch was trained on in this process."""
        return any(one.trained and one.begun for loader in self.loaders.values() for one in loader.passes)

    @property
    def busy(self) -> str:
        """Why positions cannot be put back now, as the end of a sentence; empty when they can."""
        if self.is_asked and self.is_running:
            return "after epochs() or restore()"
        if any(one.is_open and one.begun for loader in self.loaders.values() for one in loader.passes):
            return "inside a loop over a loader"
        return ""

    def rewind(self) -> None:
        """The run is about to go on from elsewhere: iterators that gave nothing yet are passes of what follows."""
        self._opened, self._reenters = [], False
        for loader in self.loaders.values():
            loader.waiting += [one for one in loader.passes if one.is_open]
            loader.passes = []

    # ---- saves at any moment

    def _place_of_save(self) -> Place | None:
        """The moment that a save which the script makes now is gone on from; None when it is where the run began."""
        led = [known for at, known in enumerate(self._opened) if self._is_under_way(at)]
        if led:
            self._settle()
        if self._destination is not None:
            return None
        place = Place(AT_FETCH, led[0][0].slot, led[0][1].index, True) if led else Place()
        if any(one.fresh for _, one in led):
            self._say(
                "save_state was called before the batch that was fetched last was trained on (with "
                "accelerator.backward, or a step): a run that goes on from there begins with that batch"
            )
        self._last_save = place
        return place

    def capture_save(self, num_ranks: int, *, is_first: bool) -> dict[str, Any]:
        """Where the run stands in a save that the script makes now; see `Tracker.capture`."""
        here = self._place_of_save()
        if here is None:
            return self.capture(num_ranks, is_first=is_first)
        is_left = here.kind == BETWEEN
        found = self._capture(Capture(num_ranks, left=is_left, in_body=True), here, is_first=is_first)
        if is_left and not self._has_trained_in_epoch:
            found["counts"]["epoch"] = max(self.counts.epoch - 1, -1)  # saved at the top of an epoch: it is to come
        return found

    @property
    def _has_trained_in_epoch(self) -> bool:
        return self.counts.epoch_batch > 0 or self.counts.step > self._first_step

    def enter_epoch(self, epoch: int) -> None:
        """See `Tracker.enter_epoch`."""
        super().enter_epoch(epoch)
        self._first_step, self._last_save = self.counts.step, None

    def end_epoch(self, *, is_last: bool) -> None:
        """See `Tracker.end_epoch`."""
        saved = self._last_save
        if saved is not None and saved.kind == AT_FETCH and any(saved.is_at(*known) for known in self._held):
            self._say(
                "save_state was called in an epoch that ended before more was asked of its iterator: a run that goes "
                "on from there runs the code of that epoch again. Make the iterator anew in each epoch"
            )
        super().end_epoch(is_last=is_last)

    @property
    def _held(self) -> list[tuple[TrackedLoader, Pass]]:
        return [known for known in self._opened if known[1].is_open]

    def asked_late(self) -> None:
        """See `Tracker.asked_late`."""
        if self.is_asked and not self.finds_epochs:
            self._say(
                "an iterator over a loader was made in one epoch and is asked for more in the next: a run that goes on "
                "makes it anew, and begins with other batches. Make it above the epochs"
            )

    def _look_at(self, held: list[tuple[TrackedLoader, Pass]], fresh: list[tuple[TrackedLoader, Pass]]) -> None:
        """Say what a run that goes on from here would not do alike."""
        goes_on = any(one.begun for _, one in held)
        if goes_on and not fresh:
            return  # a step, whose backward was told of
        if not goes_on and self.is_foreign():
            self._say(
                "a batch was trained on of a loader that was not prepared, or that the function skip_first_batches has "
                "made: it goes on as the random generators decide. Call accelerator.skip_first_batches()"
            )
        if self._late and any(loader.slot in self._late for loader, _ in fresh):
            self._say(
                "a loader was prepared, or made to skip batches, while a script with a range of its own trains: a run "
                "that goes on inside an epoch begins with it anew. Take the epochs from resume.epochs()"
            )
        self._settle()
        saved = self._last_save
        if saved is not None and saved.kind == BETWEEN and not self.finds_epochs and self._has_trained_in_epoch:
            self._say(
                "save_state was called between two loops of an epoch: a run that goes on from there begins with the "
                "next epoch. Call it in a loop that trains, or at the end of the epoch"
            )

    # ---- scripts that count epochs themselves

    def _bind(self, loader: TrackedLoader, one: Pass) -> None:
        if self._is_at_end and not self._reenters:
            self._pass_over()
            self._say(
                "the run was saved with the last batch of a loop, and the script counts epochs by itself: it is taken "
                "to begin with the next epoch. One that goes on in that epoch has to ask resume.epochs() or restore()"
            )
        super()._bind(loader, one)

    def _settle(self) -> None:
        """A script that counts epochs itself trains: those that it has only looked at loaders in do not count."""
        if self.is_asked:
            return
        if self._destination is not None and self._destination.kind == BETWEEN:
            self._destination = None
            self.enter_epoch(self.next_epoch)
        elif self._destination is None and self.counts.epoch < 0:
            self.enter_epoch(0)
            self._slot_of_epoch = 0  # loaders that its code has prepared are among those that there are

    @property
    def _is_at_end(self) -> bool:
        """Whether the run goes on from the last batch of an epoch, in a script that counts itself."""
        leads = self._destination
        if self.is_asked or leads is None or leads.slot not in self.loaders:
            return False
        waits = self.loaders[leads.slot].waits_for(leads.index)
        return waits and all(loader.is_at_end for loader in self.loaders.values())

    def _pass_over(self) -> None:
        """The script does not go on in the epoch whose last batch the run was saved with."""
        for loader in self.loaders.values():
            loader.finish()
        self._here = self._destination = Place()

    def stands_in(self, loader: TrackedLoader, num_batches: int) -> bool:
        """Whether ``loader`` begins where a script wants to go on that skips ``num_batches`` of it by itself.

        After a resume it does, whatever the script has computed: what was saved is the truth.
        """
        saved = self._predecessor(loader)
        if saved is not None and self._is_at_end:
            self._reenters = num_batches == saved["num_batches"]
            if not self._reenters:
                self._pass_over()
            saved = self._predecessor(loader)
        if saved is not None:
            self._compare_skipped(num_batches, saved["num_batches"])
            return True
        if loader.waits and not self.is_asked:
            self._compare_skipped(num_batches, 0)
            return True
        return num_batches == 0

    def _predecessor(self, loader: TrackedLoader) -> Mapping[str, Any] | None:
        return loader.predecessor(carried=False, loosely=not self.is_asked)

    def _compare_skipped(self, wanted: int, done: int) -> None:
        if wanted != done and not self.is_asked:
            self._say(
                f"skip_first_batches was to skip {wanted} batches, and {done} of this pass were trained on when the "
                f"run was saved: it goes on behind those"
            )
