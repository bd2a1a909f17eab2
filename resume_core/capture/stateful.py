"""What torchdata's `StatefulDataLoader` does beside what its base class does; torchdata itself is never imported.

It keeps its last iterator, makes one early when it is asked for its state, and moves the next one to a state that was
loaded. A loader that is made resumable is positioned by the run instead, so neither may happen to it.
"""

from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader

__all__ = ["end_iterator", "forget_loaded", "has_plain_iter", "makes_early_iterators", "state_without_iterator"]

_PLAIN = ("torch.utils.data.dataloader", "torchdata.stateful_dataloader.stateful_dataloader")
_EARLY, _LOADED = "_initial_iter_for_state_dict", "next_iter_state"


def has_plain_iter(cls: type[DataLoader[Any]]) -> bool:
    """Whether the ``__iter__`` of a loader's class is torch's or torchdata's: those draw nothing by themselves."""
    return cls.__iter__.__module__ in _PLAIN


def makes_early_iterators(loader: Any) -> bool:
    """Whether ``loader`` makes an iterator when it is asked for its state."""
    return _EARLY in loader.__dict__


def end_iterator(loader: Any) -> None:
    """End workers that wait for the next iterator; it starts others."""
    attributes = loader.__dict__
    iterator = attributes.get("_iterator")
    if iterator is None:
        return
    shutdown = getattr(iterator, "_shutdown_workers", None)  # without workers there is nothing to shut down
    if shutdown is not None:
        shutdown()
    attributes["_iterator"] = None
    if makes_early_iterators(loader):
        attributes[_EARLY] = False


def forget_loaded(loader: Any) -> None:
    """The next iterator stands where the run says, not where a state said that was loaded into the loader."""
    if _LOADED in loader.__dict__:
        loader.__dict__[_LOADED] = None


def state_without_iterator(loader: Any, cls: type) -> Any:
    """The state of a loader, without an iterator being made for it: the empty one stands for its beginning."""
    return {} if loader.__dict__.get("_iterator") is None else cls.state_dict(loader)  # type: ignore[attr-defined]
