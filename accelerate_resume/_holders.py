"""Objects with a state that hold a prepared optimizer, such as schedulers: found, so that they can be named.

Nothing tells of them all: most schedulers leave ``initial_lr`` in the groups of their optimizer, ``ReduceLROnPlateau``
leaves nothing. So the garbage collector is asked who refers to the optimizer, once and before the first batch: that
takes it about as long as one collection of everything.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Sequence
from typing import Any

import torch

__all__ = ["unsaved_holders"]

_TOLD_OF_ELSEWHERE = (torch.nn.Module, torch.optim.Optimizer)


def unsaved_holders(optimizers: Sequence[Any], saved: Iterable[Any]) -> list[Any]:
    """Objects that refer to one of ``optimizers`` in an attribute, have a state, and are neither saved nor part of it.

    Modules and optimizers are left out: prepared ones are saved, and other optimizers are seen when they step.

    Args:
        optimizers: that were prepared, and what they were prepared from.
        saved: all objects whose state is saved.
    """
    direct = gc.get_referrers(*optimizers) if optimizers else []
    attributes = [each for each in direct if type(each) is dict]  # of an object, which refers to them
    owners = gc.get_referrers(*attributes) if attributes else []
    known, wanted = _parts(saved), {id(optimizer) for optimizer in optimizers}
    found = {id(each): each for each in (*direct, *owners) if _has_state(each) and id(each) not in known}
    return [each for each in found.values() if wanted & {id(value) for value in vars(each).values()}]


def _has_state(value: Any) -> bool:
    kind = type(value)
    has_methods = callable(getattr(kind, "state_dict", None)) and callable(getattr(kind, "load_state_dict", None))
    return has_methods and hasattr(value, "__dict__") and not issubclass(kind, _TOLD_OF_ELSEWHERE)


def _parts(saved: Iterable[Any]) -> set[int]:
    """By `id`: what is saved, and what it is made of, as the schedulers in a ``SequentialLR``."""
    waiting, known = list(saved), set[int]()
    while waiting:
        each = waiting.pop()
        if id(each) in known or not (isinstance(each, (list, tuple)) or _has_state(each)):
            continue
        known.add(id(each))
        waiting += each if isinstance(each, (list, tuple)) else vars(each).values()
    return known
