"""Parameter groups that an optimizer has been given, or has lost, since training began.

``Optimizer.load_state_dict`` wants the groups that were saved and knows parameters by their place only, so a new
process has to build those groups first, of the parameters that they had.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from resume_core.errors import UnsupportedStateError

__all__ = ["apply_groups", "capture_groups", "group_sizes"]

_Optimizers = Sequence[torch.optim.Optimizer]


def group_sizes(optimizers: _Optimizers) -> list[list[int]]:
    """Numbers of parameters: of each optimizer, of each group."""
    return [[len(group["params"]) for group in optimizer.param_groups] for optimizer in optimizers]


def capture_groups(
    optimizers: _Optimizers, parameters: Mapping[str, torch.nn.Parameter], before: Sequence[Sequence[int]]
) -> dict[str, list[list[str]]]:
    """Names of the parameters in each group, of optimizers whose groups are others than at the start.

    Args:
        optimizers: those of the run.
        parameters: all that a new process finds, by name.
        before: what `group_sizes` gave when the optimizers were new.

    Returns:
        By the optimizer's place, as text.

    Raises:
        UnsupportedStateError: a parameter in such an optimizer is not among ``parameters``.
    """
    changed = [i for i, (now, then) in enumerate(zip(group_sizes(optimizers), before, strict=False)) if now != then]
    names = {id(parameter): name for name, parameter in parameters.items()} if changed else {}
    return {str(i): [_named(group["params"], names, i) for group in optimizers[i].param_groups] for i in changed}


def _named(group: Sequence[torch.Tensor], names: Mapping[int, str], place: int) -> list[str]:
    try:
        return [names[id(parameter)] for parameter in group]
    except KeyError:
        raise UnsupportedStateError(
            f"optimizer {place} was given a parameter group during training, with parameters of no module that is "
            "saved, so a new process could not find them: make the group before training, or its module a part of the "
            "model",
            path=f"optimizer.{place}.param_groups",
        ) from None


def apply_groups(
    optimizers: _Optimizers, parameters: Mapping[str, torch.nn.Parameter], saved: Mapping[str, Sequence[Sequence[str]]]
) -> None:
    """Build the groups that `capture_groups` saw, before ``load_state_dict`` gives them their settings.

    Optimizers that have groups of those sizes are left as they are: a callback has built them already.
    """
    for place, groups in saved.items():
        optimizer = optimizers[int(place)]
        if [len(group) for group in groups] != [len(group["params"]) for group in optimizer.param_groups]:
            _build(optimizer, [[parameters[name] for name in group] for group in groups], groups)


def _build(
    optimizer: torch.optim.Optimizer, groups: list[list[torch.nn.Parameter]], names: Sequence[Sequence[str]]
) -> None:
    current = optimizer.param_groups
    is_named = bool(current) and "param_names" in current[0]
    del current[len(groups) :]
    for group, params in zip(current, groups, strict=False):
        group["params"] = params
    for params, own in list(zip(groups, names, strict=True))[len(current) :]:
        pairs: Any = list(zip(own, params, strict=True))
        optimizer.add_param_group({"params": pairs if is_named else params})
