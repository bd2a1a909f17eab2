"""Which values of a state a clock, or the folder of a run, has given: they decide nothing of what is trained next.

A value is one by its exact place among what the plugins and their frameworks save, and never by its look: a string with
a slash may be the name of a model, and an ``id`` a class.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from typing import Any

__all__ = ["Place", "decides", "folders_of", "own_key"]

Place = tuple[str, ...]
"""Where a value lies: the part of the state, and the keys and numbers of items below it."""

_PATHS = ("best_model_path", "kth_best_model_path", "last_model_path")
_CHECKPOINTS = frozenset({"dirpath", "best_k_models", *_PATHS})  # what a Lightning ModelCheckpoint saves, among others
# what `transformers.trainer_utils.speed_metrics` adds to the metrics of a training or an evaluation
_SPEED = r"\w+_(?:runtime|(?:samples|steps|tokens)_per_second|model_preparation_time)"

# places, with a slash between the steps
_CLOCKS = re.compile(
    rf"training/(?:checkpoint/callbacks/Timer/time_elapsed/\w+|checkpoint/pytorch-lightning_version|"
    rf"trainer/state/log_history/[0-9]+/{_SPEED}|result/2/{_SPEED})|"
    r"rank/(?:outputs/model_checkpoints/[0-9]+/since_s|outputs/loggers/[0-9]+/files/.*|trainer/elapsed_s|"
    r"trainer/boards/[0-9]+)",
    re.DOTALL,
)
_FILES = re.compile(r"rank/outputs/model_checkpoints/[0-9]+/fields/(?:_last_checkpoint_saved|best_model_path)")
_FOLDERS = re.compile(r"training/trainer/state/best_model_checkpoint")


def decides(place: Place, value: Any, parent: Mapping[str, Any], folders: Collection[str]) -> str | None:
    """What of a value decides the training, as text: all of it, a name in the run's folder, or None for nothing.

    Args:
        place: where it lies.
        value: as JSON has it.
        parent: the object that it is a member of; empty in a list.
        folders: those that `folders_of` gives.
    """
    text = "/".join(place)
    if _CLOCKS.fullmatch(text):
        return None
    is_saver = _is_callback(place[:-1]) and parent.keys() >= _CHECKPOINTS
    if is_saver and place[-1] == "dirpath":
        return None
    if isinstance(value, str) and ((is_saver and place[-1] in _PATHS) or _FILES.fullmatch(text)):
        return _below(value, folders)
    if isinstance(value, str) and _FOLDERS.fullmatch(text):
        return re.split(r"[/\\]", value)[-1]
    return json.dumps(value)


def own_key(place: Place, parent: Mapping[str, Any], key: str, folders: Collection[str]) -> str:
    """What a key is matched by: of a file in a folder of the run's, its place there.

    Args:
        place: of the object that has it.
        parent: the object around that.
        key: the key.
        folders: those that `folders_of` gives.
    """
    is_of_files = place[-1:] == ("best_k_models",) and _is_callback(place[:-1]) and parent.keys() >= _CHECKPOINTS
    return _below(key, folders) if is_of_files else key


def folders_of(structure: Mapping[str, Any]) -> list[str]:
    """The folders that a run's ``ModelCheckpoint`` callbacks write to."""
    node: Any = structure
    for step in ("training", "checkpoint", "callbacks"):
        node = node.get(step) if isinstance(node, dict) else None
    states = node.values() if isinstance(node, dict) else ()
    found = [state["dirpath"] for state in states if isinstance(state, dict) and state.keys() >= _CHECKPOINTS]
    return sorted((folder for folder in found if isinstance(folder, str) and folder), key=len, reverse=True)


def _is_callback(place: Place) -> bool:
    return place[:-1] == ("training", "checkpoint", "callbacks")


def _below(path: str, folders: Collection[str]) -> str:
    for folder in folders:
        rest = path.removeprefix(folder.rstrip("/\\"))
        if rest != path and rest[:1] in ("/", "\\"):
            return rest[1:]
    return path
