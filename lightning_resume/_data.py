"""The loaders of a Trainer's fit: asked for once, set up by Lightning, taken over, given back.

Internals used (Lightning 2.6): ``fit_loop._data_source``, ``_combined_loader`` and ``_data_fetcher``,
``val_loop._combined_loader``, ``_request_dataloader``, ``_DataLoaderSource``, and that ``epoch_loop.advance`` calls
``next`` of the fetcher.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from lightning_resume._hooks import asking_for_training, set_up_training, set_up_validation
from lightning_resume._loaders import TrainLoaders, attach
from lightning_resume._package import package_of
from resume_core.ranks import Ranks

__all__ = ["Data", "came_from_fetch"]

_VALIDATION_SLOTS = 1000


class Data:
    """The loaders of one fit.

    Args:
        trainer: in its ``setup`` hook.
        ranks: those that train together.
    """

    def __init__(self, trainer: Any, ranks: Ranks) -> None:
        self._package, self._ranks = package_of(trainer), ranks
        self._fit, self._epoch = trainer.fit_loop, trainer.fit_loop.epoch_loop
        self._asked: Any = None  # what the hook or argument gave, before Lightning has set it up
        self._validation: list[Any] = []
        self.train = self._new(key=0)

    def _new(self, key: int) -> TrainLoaders:
        return TrainLoaders(key=key, epoch=lambda: int(self._fit.epoch_progress.current.processed), ranks=self._ranks)

    @property
    def flattened(self) -> list[Any]:
        """What ``fit`` was given for training, or its hook returned; known after `ask`."""
        kind = self._package.CombinedLoader
        combined = self._asked if isinstance(self._asked, kind) else kind(self._asked)
        return list(combined.flattened)

    def ask(self, key: int) -> None:
        """Ask for the train loaders, once."""
        self.train.key = key
        if self._asked is None:
            self._ask(key, None)

    def _ask(self, key: int, epoch: float | None) -> None:
        with asking_for_training(self._fit, key, epoch):
            self._asked = self._package._request_dataloader(self._fit._data_source)

    def forget(self) -> None:
        """Ask for the loaders anew when they are next needed."""
        self.train.release()
        self.train = self._new(self.train.key)
        self._asked = self._fit._combined_loader = self._epoch.val_loop._combined_loader = None

    def seek(self, loaders: dict[str, Any], marks: Mapping[str, Any], *, reloads: bool) -> None:
        """The next iterators go on where the run stood.

        Args:
            loaders: their positions.
            marks: of the loops, see `_loops`.
            reloads: whether the hook is asked again from time to time, and so must be as of the epoch that it was.
        """
        self.train.seek(loaders)
        self._epoch.val_loop._last_val_dl_reload_epoch = marks["val_reload_epoch"]
        if reloads:
            self._ask(self.train.key, marks["train_reload_epoch"])

    # ---- in place of methods of the loops

    def watch(self) -> None:
        """After Lightning has built the combined train loader, or built it anew."""
        self.train.watch(self._fit._combined_loader)

    def set_up(self, plain: Callable[[], None], early: Callable[[], None]) -> None:
        """Around ``fit_loop.setup_data``; ``early`` is called when that comes before the run knows where it goes on."""
        deferred = self.train.deferred
        if deferred:
            early()
        if self._fit._combined_loader is None:
            self._with_asked(plain)
        else:
            made_early = self._fit._data_fetcher is not None and self.train.is_waiting
            set_up_training(self._fit, self.train.key, plain)
            if made_early and not deferred:
                iter(self._fit._data_fetcher)  # now that positions are known

    def _with_asked(self, plain: Callable[[], None]) -> None:
        """Let Lightning set up the loaders that `ask` has asked for already."""
        source = self._fit._data_source
        self._fit._data_source = self._package._DataLoaderSource(self._asked, source.name)
        try:
            plain()
        finally:
            self._fit._data_source = source

    def set_up_validation(self, plain: Callable[[], None]) -> None:
        """Around ``val_loop.setup_data``."""
        set_up_validation(self._fit, self.train.key, plain)
        combined = self._epoch.val_loop._combined_loader
        if combined is None:
            return
        self._validation = attach(
            combined.flattened, key=self.train.key, first_slot=_VALIDATION_SLOTS, ranks=self._ranks
        )
        for handle in filter(None, self._validation):
            if self.train.holds(handle):
                continue  # one loader for both: training decides where it stands
            handle.begin(int(self._epoch.batch_progress.total.completed))

    def release(self) -> None:
        """Give the loaders back as they were."""
        self.train.release()
        for handle in filter(None, self._validation):
            handle.release()
        self._validation = []


def came_from_fetch(error: BaseException, fetcher: Any) -> bool:
    """Whether ``epoch_loop.advance`` has raised ``error`` in fetching a batch, before any hook has seen that."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        here, below = trace.tb_frame, trace.tb_next.tb_frame
        if here.f_code.co_name == "advance" and below.f_code.co_name == "__next__":
            return below.f_locals.get("self") is fetcher
        trace = trace.tb_next
    return False
