"""Learning-rate and batch-size finders: they tune a new run, and a run that goes on takes what they had found.

Both train inside of ``fit``, on loops, loaders and checkpoints of their own making, so the Trainer must be as Lightning
made it while they do. They come as callbacks (``LearningRateFinder``, ``BatchSizeFinder``) and as ``Tuner(trainer)``,
which calls ``fit`` with such a callback and leaves it by an exception.

Internals used (Lightning 2.6): ``lr_find`` and ``scale_batch_size`` with their results ``optimal_lr`` and
``optimal_batch_size``; ``_early_exit``, ``_update_attr``, ``_attr_name``, ``_batch_arg_name``;
``_determine_lr_attr_name``, ``_LRFinder``, ``_TunerExitException``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lightning_resume._package import Package, is_a, package_of

__all__ = ["Findings", "finders", "is_tuner_fit", "tuning_method"]

_log = logging.getLogger("lightning.pytorch.exact_resume")


def finders(callbacks: Sequence[Any]) -> list[Any]:
    """The callbacks that tune."""
    return [callback for callback in callbacks if is_a(callback, "BatchSizeFinder", "LearningRateFinder")]


def tuning_method(finder: Any) -> str:
    """The method of ``finder`` that tunes."""
    return "lr_find" if is_a(finder, "LearningRateFinder") else "scale_batch_size"


def is_tuner_fit(callbacks: Sequence[Any]) -> bool:
    """Whether this ``fit`` is that of a ``Tuner``, which ends as soon as it has tuned."""
    return any(finder._early_exit for finder in finders(callbacks))


class Findings:
    """What the finders of a run have found, by their kind; plain JSON."""

    def __init__(self) -> None:
        self.found: dict[str, Any] = {}

    def note(self, finder: Any, module: Any) -> None:
        """After ``finder`` has tuned."""
        if is_a(finder, "LearningRateFinder"):
            if finder.optimal_lr is not None:
                self.found["learning_rate"] = _lr_finding(finder, module)
        elif finder.optimal_batch_size is not None:
            attribute = finder._batch_arg_name
            size: Any = package_of(finder).lightning_getattr(module, attribute)  # what training goes on with
            optimal = int(finder.optimal_batch_size)
            self.found["batch_size"] = {"attribute": attribute, "value": int(size), "optimal": optimal}

    def knows(self, finder: Any) -> bool:
        """Whether the run has tuned with a finder of this kind."""
        return _kind(finder) in self.found

    def put_back(self, finder: Any, trainer: Any) -> None:
        """Give module, optimizers and ``finder`` what was found."""
        found = self.found[_kind(finder)]
        if is_a(finder, "LearningRateFinder"):
            finder.optimal_lr = _lr_finder(found, package_of(finder))
        else:
            finder.optimal_batch_size = found["optimal"]
        _log.info("%s is not run again: %s = %s", type(finder).__name__, found["attribute"], found["value"])
        if found["attribute"] is None:
            return
        package_of(finder).lightning_setattr(trainer.lightning_module, found["attribute"], found["value"])
        if is_a(finder, "LearningRateFinder"):
            for group in (group for optimizer in trainer.optimizers for group in optimizer.param_groups):
                group["lr"] = found["value"]

    def answer_or_note(self, finder: Any) -> Callable[..., None]:
        """What takes the place of the tuning of a ``Tuner``, whose ``fit`` ends by an exception when it has tuned."""

        def tune(plain: Callable[..., None], trainer: Any, module: Any) -> None:
            if self.knows(finder):
                self.put_back(finder, trainer)
                raise package_of(finder)._TunerExitException
            try:
                plain(trainer, module)
            finally:
                self.note(finder, module)

        return tune


def _kind(finder: Any) -> str:
    return "learning_rate" if is_a(finder, "LearningRateFinder") else "batch_size"


def _lr_finding(finder: Any, module: Any) -> dict[str, Any]:
    search = finder.optimal_lr
    assert search is not None
    place = getattr(search, "_optimal_idx", None)  # set when Lightning asked for the suggestion, which logs if it fails
    value = None if place is None else float(search.results["lr"][place])
    return {
        "attribute": None if value is None else package_of(finder)._determine_lr_attr_name(module, finder._attr_name),
        "value": value,
        "search": [search.mode, search.lr_min, search.lr_max, search.num_training],
        # hex: a loss may be infinite or no number, for which JSON has no word
        "results": {name: [float(value).hex() for value in values] for name, values in search.results.items()},
    }


def _lr_finder(found: Mapping[str, Any], package: Package) -> Any:
    search = package._LRFinder(*found["search"])
    search.results = {name: [float.fromhex(text) for text in texts] for name, texts in found["results"].items()}
    search._total_batch_idx = len(search.results.get("loss", ()))
    if found["value"] is not None:
        search.suggestion()  # which notes its place for plot()
    return search
