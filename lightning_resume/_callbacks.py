"""What Lightning's own callbacks keep outside of their ``state_dict``.

Internals used (Lightning 2.6): fields of ``ModelCheckpoint`` (`_FIELDS`) and its methods ``setup``, ``file_exists``,
``_save_checkpoint``, ``_link_checkpoint`` and ``_remove_checkpoint``; ``LearningRateMonitor.lrs`` and its last values;
``already_saved`` of the ``SaveConfigCallback`` of ``LightningCLI``.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lightning_resume._growing import grown_floats, pack_floats
from lightning_resume._package import is_a

__all__ = [
    "CheckpointFiles",
    "apply_callbacks",
    "capture_callbacks",
    "keep_config",
    "model_checkpoints",
    "quiet_setup",
]

_FIELDS = (
    "_last_global_step_saved",
    "_last_checkpoint_saved",
    "_defer_save_until_validation",
    "current_score",
    "best_model_path",
)
_LAST_VALUES = ("last_momentum_values", "last_weight_decay_values")
Shadow = Callable[[Any, str, Callable[..., Any]], None]


def model_checkpoints(callbacks: Sequence[Any]) -> list[Any]:
    """Those of a Trainer, in its order."""
    return [callback for callback in callbacks if is_a(callback, "ModelCheckpoint")]


def keep_config(callbacks: Sequence[Any]) -> None:
    """Let ``LightningCLI`` write no ``config.yaml``, for which it wants a logger that writes."""
    for callback in callbacks:
        if hasattr(callback, "already_saved"):
            callback.already_saved = True


def capture_callbacks(callbacks: Sequence[Any]) -> dict[str, Any]:
    """Fields that a callback's own state lacks."""
    return {
        "model_checkpoints": [_capture_model_checkpoint(callback) for callback in model_checkpoints(callbacks)],
        "monitors": [_capture_monitor(callback) for callback in _monitors(callbacks)],
    }


def apply_callbacks(callbacks: Sequence[Any], saved: Mapping[str, Any]) -> None:
    """Put back what `capture_callbacks` saw; after ``on_train_start``, which clears some of it."""
    for callback, state in zip(model_checkpoints(callbacks), saved["model_checkpoints"], strict=False):
        for name in (name for name in _FIELDS if name in state["fields"]):
            setattr(callback, name, state["fields"][name])
        if state["since_s"] is not None:
            callback._last_time_checked = time.monotonic() - state["since_s"]
    for monitor, state in zip(_monitors(callbacks), saved["monitors"], strict=False):
        monitor.lrs = {name: grown_floats(values) for name, values in state["lrs"].items()}
        for name in _LAST_VALUES:
            setattr(monitor, name, dict(state[name]))


def _capture_model_checkpoint(callback: Any) -> dict[str, Any]:
    last = callback._last_time_checked
    return {
        "fields": {name: getattr(callback, name) for name in _FIELDS if hasattr(callback, name)},
        "since_s": None if last is None else time.monotonic() - last,
    }


def _monitors(callbacks: Sequence[Any]) -> list[Any]:
    return [callback for callback in callbacks if is_a(callback, "LearningRateMonitor")]


def _capture_monitor(monitor: Any) -> dict[str, Any]:
    lrs = {name: pack_floats(values) for name, values in monitor.lrs.items()}
    return {"lrs": lrs} | {name: dict(getattr(monitor, name, {})) for name in _LAST_VALUES}


def quiet_setup(plain: Callable[..., None], *args: Any, **kwargs: Any) -> None:
    """``ModelCheckpoint.setup`` of a run that goes on: that its folder is not empty is as it should be."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*exists and is not empty.*")
        plain(*args, **kwargs)


class CheckpointFiles:
    """The files of one ``ModelCheckpoint`` that exist as far as its run knows.

    A killed attempt may have written more of them after the checkpoint that the run goes on from. The run will come to
    write each of those again, under the same name: to it they are not there, or it would write a ``-v1`` beside them.

    Args:
        callback: whose ``dirpath`` is known.
        shadow: replaces a method by one that gets the plain method first.
    """

    def __init__(self, callback: Any, shadow: Shadow) -> None:
        self._callback = callback
        self._present: set[str] | None = None
        shadow(callback, "file_exists", self._exists)
        shadow(callback, "_save_checkpoint", self._save)
        shadow(callback, "_link_checkpoint", self._link)
        shadow(callback, "_remove_checkpoint", self._remove)

    def begin(self, trainer: Any) -> None:
        """A new run begins: note what lies in the folder already."""
        self._present = set(trainer.strategy.broadcast(self._listed()))

    def capture(self) -> list[str] | None:
        """Names below the folder."""
        return None if self._present is None else sorted(self._present)

    def capture_with(self, path: Any) -> list[str] | None:
        """The same when the file that is being written will be there."""
        return None if self._present is None else sorted({*self._present, self._name(path)})

    def apply(self, saved: list[str] | None) -> None:
        """Go on with what `capture` saw."""
        self._present = None if saved is None else set(saved)

    def _listed(self) -> list[str]:
        folder, fs = str(self._callback.dirpath), self._callback._fs
        if not fs.exists(folder):
            return []
        nested = os.sep in (self._callback.filename or "")
        paths = fs.find(folder) if nested else fs.ls(folder, detail=False)
        return [self._name(path) for path in paths]

    def _name(self, path: Any) -> str:
        strip = self._callback._fs._strip_protocol  # what fs.ls gives has none
        return str(os.path.relpath(strip(str(path)), strip(str(self._callback.dirpath))))

    def _exists(self, plain: Callable[..., bool], path: Any, trainer: Any) -> bool:
        there = plain(path, trainer)  # first: with several ranks it is a collective
        return there and (self._present is None or self._name(path) in self._present)

    def _written(self, path: Any) -> None:
        if self._present is not None:
            self._present.add(self._name(path))

    def _save(self, plain: Callable[..., None], trainer: Any, path: Any) -> None:
        plain(trainer, path)
        self._written(path)

    def _link(self, plain: Callable[..., None], trainer: Any, path: Any, link: Any) -> None:
        plain(trainer, path, link)
        self._written(link)

    def _remove(self, plain: Callable[..., None], trainer: Any, path: Any) -> None:
        plain(trainer, path)
        if self._present is not None:
            self._present.discard(self._name(path))
