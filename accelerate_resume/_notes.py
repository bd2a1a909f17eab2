"""What users should know of a run: what will not be exact, or not be as they may expect."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from accelerate_resume._holders import unsaved_holders
from accelerate_resume._tracker import Tracker
from resume_core.capture.attributes import AttributeWatch, changed_note
from resume_core.capture.dataset_attributes import DatasetWatch, roots_of_loader
from resume_core.capture.global_generators import find_training_generators, generator_note, generators_of_loader
from resume_core.capture.loader_warnings import loader_warnings
from resume_core.ranks import Ranks

__all__ = ["OF_ACCELERATE", "Advice", "Notes"]

_ADVICE = "keep them in a buffer, in resume.counters(), or in an object that is given to resume.track()"
OF_ACCELERATE = frozenset({"forward", "_original_forward", "_is_accelerate_prepared"})
"""Attributes that it sets on modules."""


class Advice(NamedTuple):
    """Where to keep what a resume would lose, each the end of a sentence."""

    generators: str
    data: str


class Notes:
    """Those of one run, each told once.

    Args:
        tracker: gives what follows the run.
        ranks: those that train together.
        words: what to do about them.
    """

    def __init__(self, tracker: Callable[[], Tracker], ranks: Ranks, words: Advice) -> None:
        self._find_tracker, self._ranks, self._words = tracker, ranks, words
        self.watch: AttributeWatch | None = None
        """On what modules keep in plain attributes, once training has begun."""
        self._noted_step = 0
        self._named = set[str]()
        self._data: dict[int, DatasetWatch] = {}
        self._restored: tuple[str, ...] = ()
        self._others: Collection[int] = ()

    @property
    def _tracker(self) -> Tracker:
        return self._find_tracker()

    def at_start(
        self, modules: Mapping[str, torch.nn.Module], optimizers: Sequence[Any], saved: Iterable[Any]
    ) -> list[str]:
        """What is seen before the first batch, one sentence each.

        Args:
            modules: all that a step may change, by name.
            optimizers: that were prepared, and what they were prepared from.
            saved: all that may hold one of them and is saved.
        """
        self.watch = AttributeWatch(modules, OF_ACCELERATE)
        notes = [note for loader in self._tracker.loaders.values() for note in loader_warnings(loader.prepared.base)]
        if not optimizers:
            notes.append(
                "no optimizer was prepared: what one holds is not saved, steps are not counted, and "
                "SaveEvery(steps=...) has no effect"
            )
        notes += [
            f"a {type(holder).__name__} holds a prepared optimizer and is not saved, so that a resume begins with it "
            "anew: give it to accelerator.prepare(), or to resume.track(name=it)"
            for holder in unsaved_holders(optimizers, saved)
        ]
        return notes + self._note_uneven()

    def generators(
        self, owners: Iterable[Any], code: Iterable[tuple[str, Any]], captured: Iterable[Any], closed: Iterable[object]
    ) -> list[str]:
        """What is said of random generators that no state holds.

        Args:
            owners: modules and what else is trained, or holds what trains.
            code: what trains beside them, by name.
            captured: generators that the run saves.
            closed: objects that are not looked into.
        """
        prepared = [loader.prepared for loader in self._tracker.loaders.values()]
        loaders = [each for one in prepared for each in (one.loader, one.base)]
        known = [*captured, *(each for loader in loaders for each in generators_of_loader(loader))]
        datasets = [getattr(loader, "dataset", None) for loader in loaders]  # what their code uses is named with them
        names = find_training_generators(owners, code=code, known=known, closed=(*closed, *datasets))
        new = [name for name in names if name not in self._named]
        self._named.update(new)
        return [generator_note(new, self._words.generators)] if new else []

    def _note_uneven(self) -> list[str]:
        if not self._tracker.is_saved:
            return []
        loaders = self._tracker.loaders
        lengths = [[slot, loader.length] for slot, loader in sorted(loaders.items())]
        uneven = [found for found in zip(*self._ranks.gather("the lengths of loaders", lengths), strict=True)
                  if any(each != found[0] for each in found)]  # fmt: skip
        for (slot, _), *_ in uneven:
            loaders[slot].is_uneven = True
        return [
            f"loader {slot} gives ranks different numbers of batches: training on it is saved between epochs only"
            for (slot, _), *_ in uneven
        ]

    def watch_data(self, restored: Iterable[str], others: Collection[int]) -> None:
        """Look at the datasets, and at those of later loaders once they are known.

        Args:
            restored: names of attributes that a resume brings back.
            others: objects that are watched already, by `id`.
        """
        self._restored, self._others = tuple(restored), others
        self._data.clear()
        self._watch_new_data()

    def _watch_new_data(self) -> None:
        new = {slot: loader for slot, loader in self._tracker.loaders.items() if slot not in self._data}
        for slot, loader in new.items():
            base = loader.prepared.base
            # which Accelerate and the Trainer call at each start of a pass
            by_epoch = ("epoch",) if hasattr(getattr(base, "dataset", None), "set_epoch") else ()
            roots = roots_of_loader(f"dataset.{slot}", base)
            self._data[slot] = DatasetWatch(roots, (*self._restored, *by_epoch), self._others)

    def of_data(self) -> list[str]:
        """What training has shown of the datasets that it uses, one sentence each."""
        loaders = self._tracker.loaders
        used = [watch for slot, watch in self._data.items() if slot in loaders and loaders[slot].trains]
        names = [name for watch in used for name in watch.changed()]
        self._watch_new_data()
        return [changed_note(names, self._words.data)] if names else []

    def later(self) -> list[str]:
        """What training has shown, one sentence each."""
        names = self.watch.changed() if self.watch is not None else []
        found = []
        if names:
            found.append(changed_note(names, _ADVICE))
        found += self.of_data()
        counts = self._tracker.counts
        if counts.step > self._noted_step and not any(loader.trains for loader in self._tracker.loaders.values()):
            found.append(
                "no batch that was trained on came from a loader that was prepared: saves fall between epochs only, "
                "and such loaders go on as the random generators decide; give them to accelerator.prepare()"
            )
            self._noted_step = 2**63
        return found
