"""What the state of some modules covers, wherever else it is held: an LSTM has its parameters in a list as well."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch

__all__ = ["Saved"]


class Saved:
    """Registered modules, their parameters and buffers, views of those, and what torch computes from them.

    Args:
        owners: those that are no modules have none.
    """

    def __init__(self, owners: Iterable[Any]) -> None:
        modules = [child for owner in owners if isinstance(owner, torch.nn.Module) for child in owner.modules()]
        self._modules = {id(module) for module in modules}
        tensors = [tensor for module in modules for tensor in _tensors(module)]
        self._tensors = {id(tensor) for tensor in tensors}
        self._storages = {_storage(tensor) for tensor in tensors} - {None}

    def __contains__(self, value: torch.Tensor | torch.nn.Module) -> bool:
        if isinstance(value, torch.nn.Module):
            return id(value) in self._modules
        return id(value) in self._tensors or _storage(value) in self._storages


def _tensors(module: torch.nn.Module) -> Iterator[torch.Tensor]:
    yield from module.parameters(recurse=False)
    yield from module.buffers(recurse=False)
    for hook in module._forward_pre_hooks.values():
        # weight_norm, spectral_norm and pruning keep the tensor that they compute under the name of the parameter
        name = getattr(hook, "name", getattr(hook, "_tensor_name", None))
        computed = vars(module).get(name) if isinstance(name, str) and type(hook).__module__.startswith("torch.") else 0
        if isinstance(computed, torch.Tensor):
            yield computed


def _storage(tensor: torch.Tensor) -> int | None:
    """Where its elements lie; None for one without any, or of a kind that has no storage."""
    try:
        return tensor.untyped_storage().data_ptr() or None
    except (NotImplementedError, RuntimeError):  # sparse, or a subclass that only wraps others
        return None
