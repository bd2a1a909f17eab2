"""What a checkpoint records for people and for exports, and never restores: hyper-parameters and module versions.

Internals used (Lightning 2.6): ``CHECKPOINT_HYPER_PARAMS_KEY``, ``_NAME`` and ``_TYPE`` of modules and datamodules, the
keys under which a Lightning checkpoint holds their hyper-parameters. The type is a class, there only for OmegaConf's.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any

import torch

from lightning_resume._averaging import WEIGHTS_BESIDE_THE_AVERAGE
from resume_core.capture.weights import versions
from resume_core.image import Recorded

__all__ = ["VERSIONS", "exported_hyper_parameters", "recorded_info"]

VERSIONS = "module_versions"
"""Of the modules: a ``state_dict`` carries them beside its tensors."""

_OWNERS = ("", "datamodule_")
_KEY, _NAME, _TYPE = "hyper_parameters", "hparams_name", "hparams_type"
_OMEGACONF = "$omegaconf"


def recorded_info(checkpoint: MutableMapping[str, Any], weights: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """Take out of a Lightning checkpoint what is recorded only.

    Args:
        checkpoint: as Lightning made it, without its weights.
        weights: those.
    """
    keys = [owner + key for owner in _OWNERS for key in (_KEY, _NAME, _TYPE)]
    info = {key: checkpoint.pop(key) for key in keys if key in checkpoint}
    info |= {key: _as_plain(info[key]) for key in (owner + _KEY for owner in _OWNERS) if key in info}
    # averaged weights stand there as a plain dict
    return info | {VERSIONS: versions(weights) or versions(checkpoint.get(WEIGHTS_BESIDE_THE_AVERAGE, {}))}


def _as_plain(value: Any) -> Any:
    """A value with OmegaConf's containers in it as what they hold, marked."""
    omegaconf = sys.modules.get("omegaconf")
    if omegaconf is not None and isinstance(value, omegaconf.Container):
        return {_OMEGACONF: omegaconf.OmegaConf.to_container(value)}
    if type(value) is dict:
        return {name: _as_plain(child) for name, child in value.items()}
    return value


def exported_hyper_parameters(info: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """What a Lightning checkpoint holds of them, and a note on each that was recorded as text alone."""
    found: dict[str, Any] = {}
    notes: list[str] = []
    for owner in _OWNERS:
        saved = info.get(owner + _KEY)
        if not isinstance(saved, dict):
            continue
        found |= {owner + _NAME: info[owner + _NAME]} if owner + _NAME in info else {}
        lost = {name: text for name, value in saved.items() if (text := next(_texts(value), None)) is not None}
        plain = _from_plain({name: value for name, value in saved.items() if name not in lost})
        found[owner + _KEY] = plain
        found |= {} if type(plain) is dict else {owner + _TYPE: type(plain)}
        notes += [_left_out(owner + _KEY, name, text) for name, text in lost.items()]
    return found, notes


def _left_out(where: str, name: str, text: Recorded) -> str:
    return (
        f"{where} without {name!r}, which is no plain value: {text.type}, {text.value}. "
        f"Pass it yourself: load_from_checkpoint(..., {name}=...)"
    )


def _from_plain(value: Any) -> Any:
    """What `_as_plain` was given; where OmegaConf is not installed, plain containers do as well."""
    if type(value) is not dict:
        return value
    if value.keys() != {_OMEGACONF}:
        return {name: _from_plain(child) for name, child in value.items()}
    try:
        from omegaconf import OmegaConf
    except ImportError:
        return value[_OMEGACONF]
    return OmegaConf.create(value[_OMEGACONF])


def _texts(value: Any) -> Iterator[Recorded]:
    """Values inside that were recorded as text."""
    if isinstance(value, Recorded):
        yield value
    elif isinstance(value, Mapping):
        for child in value.values():
            yield from _texts(child)
    elif isinstance(value, (list, tuple, set, frozenset)):
        for child in value:
            yield from _texts(child)
