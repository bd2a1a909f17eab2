"""Hooks of the user's that make loaders: asked as of the right epoch, in a random stream of that epoch's own.

A hook that draws (a ``random_split`` without a generator) then gives the same loader in every attempt, and moves no
other draws; one that looks at ``current_epoch`` sees the epoch in which the run had asked it.

Internals used (Lightning 2.6): ``fit_loop.epoch_progress`` and ``_should_reload_train_dl``; of the validation loop
``_combined_loader``, ``_should_reload_val_dl`` and ``_last_val_dl_reload_epoch``.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any

from resume_core.capture.rng import derive, preserved_rng, seed_rng

__all__ = ["asking_for_training", "set_up_training", "set_up_validation"]

_TRAINING, _VALIDATION = 101, 102  # the words that the streams are derived with


@contextlib.contextmanager
def _asking(fit_loop: Any, key: int, hooks: int, epoch: float | None) -> Iterator[None]:
    progress = fit_loop.epoch_progress.current
    current = progress.completed
    if epoch is not None:
        progress.completed = max(int(epoch), 0)
    try:
        with preserved_rng():
            seed_rng(derive(key, hooks, int(progress.completed)))
            yield
    finally:
        progress.completed = current


def asking_for_training(fit_loop: Any, key: int, epoch: float | None = None) -> contextlib.AbstractContextManager[None]:
    """A block that asks for the train loaders as of ``epoch``, or of the current one."""
    return _asking(fit_loop, key, _TRAINING, epoch)


def set_up_training(fit_loop: Any, key: int, plain: Callable[[], None]) -> None:
    """Call ``plain``, which sets the train loaders up again if Lightning finds that they are due."""
    with asking_for_training(fit_loop, key) if fit_loop._should_reload_train_dl else contextlib.nullcontext():
        plain()


def set_up_validation(fit_loop: Any, key: int, plain: Callable[[], None]) -> None:
    """Call ``plain``, which sets the validation loaders up if they are not yet, or due again.

    A resumed run has none yet: unless they are due it asks for them as of the epoch in which the run had asked.
    """
    loop = fit_loop.epoch_loop.val_loop
    due, asked = loop._should_reload_val_dl, loop._last_val_dl_reload_epoch
    if loop._combined_loader is not None and not due:
        plain()
        return
    with _asking(fit_loop, key, _VALIDATION, None if due or math.isinf(asked) else asked):
        plain()
