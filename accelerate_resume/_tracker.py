"""What a training script does, seen from outside: its epochs, the batches that it trains on, and boundaries."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch

from accelerate_resume._passes import Capture, Pass, TrackedLoader
from accelerate_resume._place import AT_END, AT_FETCH, BETWEEN, Counts, Place
from resume_core.errors import ResumeError

__all__ = ["Boundary", "Tracker"]


class Boundary(Protocol):
    """What is called at each boundary."""

    def __call__(self, *, ends_epoch: bool, is_last: bool) -> None:
        """Whether it is the end of an epoch, and nothing is trained after it."""
        ...


class _PassIterator:
    """What a script iterates over in place of a loader's own iterator."""

    def __init__(self, tracker: Tracker, loader: TrackedLoader, plain: Callable[[], Iterator[Any]]) -> None:
        self._tracker, self.loader = tracker, loader
        self._plain = plain
        self._inner: Iterator[Any] | None = None
        self.may_train = torch.is_grad_enabled()
        self.one = Pass(iterator=weakref.ref(self), made_at=tracker.num_asked)

    def __iter__(self) -> _PassIterator:
        return self

    def __next__(self) -> Any:
        if self.may_train and not self._tracker.is_running:
            self._tracker.ask_to_begin()
        if not self._tracker.is_running or not self.may_train:
            return self._validated()
        return self._tracker.next_batch(self)

    def _validated(self) -> Any:
        if self._inner is None:
            self.may_train, self.one.over = False, True
            self._tracker.evaluates()
            num_batches = self._tracker.counts.batch
            self.loader.begin_validation(num_batches, self.loader.validations_since(num_batches))
            batch = self.fetch()
            self.loader.begun(None)
            return batch
        return self.fetch()

    def fetch(self) -> Any:
        """A batch of the plain iterator."""
        if self._inner is None:
            self._inner = self._plain()
        return next(self._inner)


@dataclass
class Tracker:
    """Follows one run.

    Attributes:
        boundary: called at each.
        arrive: called when the moment is there that the run goes on from.
        resumes: called when a batch is asked for that is to be trained on.
        evaluates: called when a pass over a loader begins that nothing is trained on.
        given: called with a batch that may be trained on, before the script gets it.
        stranded: called when an exception came while a batch was fetched, right behind a boundary.
        loaders: by slot.
        counts: how far the run is.
        is_running: between the start of the run and its end.
        finds_epochs: whether the script has a range of its own, so that epochs are found by their passes.
        is_asked: whether the script takes its epochs from the run, rather than counts them itself.
        is_saved: whether anything is saved at its boundaries.
        last: the passes that the last batch came from; empty before the first in this process.
        num_asked: how often a batch was asked for in this process, of any loader.
    """

    boundary: Boundary
    arrive: Callable[[], None]
    stranded: Callable[[BaseException], None] = lambda error: None
    resumes: Callable[[], None] = lambda: None
    evaluates: Callable[[], None] = lambda: None
    given: Callable[[Any], None] = lambda batch: None
    loaders: dict[int, TrackedLoader] = field(default_factory=dict)
    counts: Counts = field(default_factory=Counts)
    is_running: bool = False
    finds_epochs: bool = False
    is_asked: bool = True
    is_saved: bool = True
    last: list[tuple[TrackedLoader, Pass]] = field(default_factory=list)
    num_asked: int = 0
    _here: Place = field(default_factory=Place)
    _opened: list[tuple[TrackedLoader, Pass]] = field(default_factory=list)
    _destination: Place | None = None
    _num_boundaries: int = 0
    _next_slot: int = 0
    _slot_of_epoch: int = 0
    _saved: dict[int, Mapping[str, Any]] = field(default_factory=dict)

    # ---- loaders

    def track(self, loader: Any, salt: int) -> TrackedLoader:
        """Follow a loader that was just prepared."""
        slot, self._next_slot = self._next_slot, self._next_slot + 1
        tracked = self.loaders[slot] = TrackedLoader(loader, slot, salt, self._iterate)
        return tracked

    def meet(self, tracked: TrackedLoader) -> None:
        """A loader that was prepared while the run goes on takes the place of its predecessor."""
        if tracked.slot in self._saved:
            tracked.apply(self._saved.pop(tracked.slot))

    def _iterate(self, loader: TrackedLoader, plain: Callable[[], Iterator[Any]]) -> Iterator[Any]:
        iterator = _PassIterator(self, loader, plain)
        if iterator.may_train and self.is_running:
            iterator.one.inner = self._is_in_body()
            self._bind(loader, iterator.one)
        elif iterator.may_train:
            loader.waiting.append(iterator.one)
        return iterator

    def _bind(self, loader: TrackedLoader, one: Pass) -> None:
        for index in loader.drop_inner() if one.inner else ():
            if self._destination is not None and (loader.slot, index) == (
                self._destination.slot,
                self._destination.index,
            ):
                self.arrive_now()  # at its end, which is behind us
        loosely = self._binds_loosely(loader)
        saved = loader.predecessor(carried=False, loosely=loosely)
        if self.finds_epochs and loader.slot == self.counts.epoch_slot and not saved:
            before = loader.passes
            if any(known.trained for known in before) and not any(known.is_open for known in before):
                # code at the top of the new epoch has run since: an iterator that it has made is one of that epoch
                self.leave_epoch(since=max(known.asked_at for known in before))
                self.enter_epoch(self.counts.epoch + 1)
        loader.bind(one, loosely=loosely)

    def _binds_loosely(self, loader: TrackedLoader) -> bool:
        """Whether an iterator may have a predecessor that was made before the epoch, although it is made in it.

        A script with a range of its own does not say where its epochs begin, and makes what it holds over them before
        the first batch, or a generator makes it when it is asked.
        """
        return not self.is_asked or (self.finds_epochs and (self._destination is not None or loader.waits))

    def _is_in_body(self) -> bool:
        """Whether a pass that is made now is an inner one."""
        answers_end = isinstance(sys.exc_info()[1], StopIteration)
        return answers_end or any(self._is_under_way(at) for at in range(len(self._opened)))

    def _is_under_way(self, at: int) -> bool:
        """Whether a loop over that pass goes on; one may be held that was asked only beside another, which is over."""
        _, one = self._opened[at]
        before = [known for _, known in self._opened[:at] if known.trained and not known.is_open]
        # a loop that is left by ``break`` has asked for a batch of each, one that ends has not
        lingers = any(one.asked_at <= known.asked_at + (not known.over) for known in before)
        return one.is_open and (one.trained or one.fresh) and not lingers

    def stands_in(self, loader: TrackedLoader, num_batches: int) -> bool:
        """Whether ``loader`` begins where a script wants to go on that skips ``num_batches`` of it by itself."""
        return num_batches == 0 or loader.predecessor(carried=False) is not None

    def ask_to_begin(self) -> None:
        """A batch is asked for that may be trained on, and the run has not begun: the script has to begin it."""

    def asked_late(self) -> None:
        """A pass that the script made in the code of an epoch is asked for a batch in a later one."""

    # ---- epochs

    def start(self) -> None:
        """The run knows where it goes on: iterators that a script made early are passes of it."""
        self.is_running = True
        for loader in self.loaders.values():
            for one in loader.waiting:
                if one.is_open:
                    one.carried = loader.is_held = True
                    loader.bind(one, loosely=self._binds_loosely(loader))
            loader.waiting.clear()

    def enter_epoch(self, epoch: int) -> None:
        """The code of an epoch begins to run."""
        self.counts.epoch, self.counts.epoch_batch = epoch, self.counts.epoch_batch if self._destination else 0
        self._slot_of_epoch = self._next_slot

    def end_epoch(self, *, is_last: bool) -> None:
        """The code of an epoch has run."""
        self.leave_epoch()
        self._here = Place()
        self.boundary(ends_epoch=True, is_last=is_last)

    def leave_epoch(self, since: int | None = None) -> None:
        """Forget what belongs to the epoch alone.

        Args:
            since: see `TrackedLoader.leave_epoch`.

        Raises:
            ResumeError: the place at which the run was saved did not come.
        """
        self._refuse_lost()
        for loader in self.loaders.values():
            loader.leave_epoch(since)
        self._opened = []

    def _refuse_lost(self) -> None:
        if self._destination is not None and self._destination.kind != BETWEEN:
            raise ResumeError(
                f"the run was saved {self._destination.kind} of loader {self._destination.slot} in epoch "
                f"{self.counts.epoch}, and the script went through that epoch without asking for it: loaders must be "
                "prepared and gone over in the same order as before, and iterators that are held over epochs be made "
                "above them"
            )

    # ---- batches

    def next_batch(self, iterator: _PassIterator) -> Any:
        """What a pass that may train gives next."""
        loader, one = iterator.loader, iterator.one
        self.resumes()
        self.num_asked += 1
        one.asked_at = self.num_asked
        if one.over or (one.at_end and not one.begun):
            self._ask_over(loader, one)
            raise StopIteration
        num_boundaries = self._num_boundaries
        self._before_fetch(loader, one)
        first = not one.begun
        if first:
            loader.begin(one)
        try:
            goes_on = first and one.num_batches > 0
            batch = loader.prepared.fetch_again(iterator.fetch) if goes_on else iterator.fetch()
        except StopIteration:
            self._ended(loader, one)
            raise
        except BaseException as error:
            if not first and self._num_boundaries > num_boundaries:
                self.stranded(error)
            raise
        if first:
            loader.begun(one)
            self._arrive_at(AT_FETCH, loader, one)
        one.num_batches += 1
        one.fresh, one.at_end = True, loader.prepared.is_at_end
        self.given(batch)
        return batch

    def _ask_over(self, loader: TrackedLoader, one: Pass) -> None:
        if not one.over:
            self._arrive_at(AT_FETCH, loader, one)  # saved in the body of the loop, of its last batch
            loader.prepared.finish()
            self._ended(loader, one)
        else:
            self._arrive_at(AT_END, loader, one)

    def _before_fetch(self, loader: TrackedLoader, one: Pass) -> None:
        if (loader, one) not in self._opened:
            self._opened = [*(known for known in self._opened if known[1].trained or known[1].is_open), (loader, one)]
            if one.carried and not loader.is_held:
                self.asked_late()
        if one.at_end:
            return  # its end is a boundary, and comes now
        if self._destination is not None and not self._destination.begun:
            self._arrive_at(AT_FETCH, loader, one)
            return
        begins_epoch = self.finds_epochs and one.num_batches == 0 and loader.trains
        if (one.trained or begins_epoch) and self._leads(one):
            self._reach(Place(AT_FETCH, loader.slot, one.index, one.begun or one.position is not None))

    def _ended(self, loader: TrackedLoader, one: Pass) -> None:
        leads = self._leads(one)
        one.over, one.fresh = True, False
        others = [known for tracked in self.loaders.values() for known in tracked.passes if known.trained]
        # the loop is not run again then, so nobody would make an iterator that it made and goes on with
        if one.trained and leads and not any(known.is_open for known in others):
            self._reach(Place(AT_END, loader.slot, one.index, True))

    @property
    def is_uneven(self) -> bool:
        """Whether a loader that is trained on gives ranks different numbers of batches."""
        return any(loader.is_uneven and loader.trains for loader in self.loaders.values())

    def _leads(self, one: Pass) -> bool:
        """Whether ``one`` was asked first of all that are open, and no other holds a batch that was not trained on."""
        if self.is_uneven:
            return False  # ranks would not reach it alike
        leads = False
        for _, known in self._opened:
            if known is one and not leads:
                leads = True
            elif (known.fresh or not leads) and known.is_open:
                return False
        return leads

    def _reach(self, place: Place) -> None:
        if self._destination is None:
            self._here, self._num_boundaries = place, self._num_boundaries + 1
            ends_epoch = self.finds_epochs and place.kind == AT_END and place.slot == self.counts.epoch_slot
            self.boundary(ends_epoch=ends_epoch, is_last=False)

    def _arrive_at(self, kind: str, loader: TrackedLoader, one: Pass) -> None:
        destination = self._destination
        if destination is not None and destination.kind == kind and destination.is_at(loader, one):
            self.arrive_now()

    def trained(self) -> None:
        """A backward, or a step of an optimizer, is done."""
        held = [known for known in self._opened if known[1].is_open]
        fresh = [known for known in held if known[1].fresh]
        self._look_at(held, fresh)
        if not fresh:
            return
        self.counts.batch += 1
        self.counts.epoch_batch += 1
        self.last = fresh
        for loader, one in fresh:
            one.fresh, one.trained, loader.trains = False, True, True
        if self.counts.epoch_slot < 0:
            self.counts.epoch_slot = fresh[0][0].slot

    def _look_at(self, held: list[tuple[TrackedLoader, Pass]], fresh: list[tuple[TrackedLoader, Pass]]) -> None:
        """Before something that was trained on is counted.

        Args:
            held: passes that the script may ask for more.
            fresh: those of them whose last batch was not trained on before.
        """

    def samples(self, num_ranks: int) -> list[dict[str, Any]]:
        """Which samples the last batch had, by loader; see `TrackedLoader.samples`."""
        return [loader.samples(one, one.num_batches, num_ranks) for loader, one in self.last]

    # ---- state

    def capture(self, num_ranks: int, *, is_first: bool) -> dict[str, Any]:
        """Where the run stands at a boundary, as plain values.

        Args:
            num_ranks: that train together.
            is_first: whether this is rank 0.
        """
        return self._capture(Capture(num_ranks), self._here, is_first=is_first)

    def _capture(self, how: Capture, here: Place, *, is_first: bool) -> dict[str, Any]:
        if here.kind == AT_END:
            how = replace(how, ended=(here.slot, here.index))
        loaders = {
            str(slot): loader.capture(how, reads=is_first or not loader.prepared.is_dispatched)
            for slot, loader in self.loaders.items()
        }
        return {
            "loaders": loaders,
            "place": vars(here).copy(),
            "counts": vars(self.counts).copy(),
            "slot": self._next_slot if here.kind == BETWEEN else self._slot_of_epoch,
        }

    def apply(self, saved: Mapping[str, Any]) -> None:
        """Go on where `capture` saw the run; what code above the loops may change is put back on arrival."""
        self.counts = Counts(**saved["counts"])
        self._here = self._destination = Place(**saved["place"])
        self._next_slot = max(self._next_slot, saved["slot"])
        self._slot_of_epoch = saved["slot"]
        self._saved = {int(slot): state for slot, state in saved["loaders"].items()}
        for slot, loader in self.loaders.items():
            if slot in self._saved:
                loader.apply(self._saved.pop(slot))

    def apply_marks(self, saved: Mapping[str, Any]) -> None:
        """Once more what code may have changed that runs again before the first batch."""
        for slot, state in saved["loaders"].items():
            if int(slot) in self.loaders:
                self.loaders[int(slot)].apply_marks(state)

    @property
    def next_epoch(self) -> int:
        """The epoch whose code runs next, or runs again."""
        if self.counts.epoch < 0:
            return 0
        return self.counts.epoch + 1 if self._here.kind == BETWEEN else self.counts.epoch

    @property
    def is_behind_loop(self) -> bool:
        """Whether the run stands behind the last batch of a loop, whose code goes on."""
        return self._here.kind == AT_END

    @property
    def is_between(self) -> bool:
        """Whether the run stands between two epochs."""
        return self._here.kind == BETWEEN

    def arrive_now(self) -> None:
        """The moment is there that the run goes on from; nothing when it was before."""
        if self._destination is not None:
            self._destination = None
            self.arrive()
