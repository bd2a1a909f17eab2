"""Whether what a checkpoint holds is in the live objects when the first batch is trained on, wherever it is.

Each tensor that was read gets a digest before it is applied, and its live counterpart another one right before the
first batch: what was dropped, cast or changed on the way is found, in the weights and in the state of optimizers,
schedulers and loss scaling.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import xxhash

from resume_core.evidence.prints import leaves, sample_bytes

__all__ = ["differing", "print_parts"]

_PLAIN = (str, int, float, bool, type(None))
_SLICE = 1 << 24  # elements at a time: those of another device come here


def print_parts(parts: Mapping[str, Any]) -> dict[str, str]:
    """A print of each leaf, by its place; nothing of leaves that are neither tensors nor plain values."""
    found = {}
    for path, leaf in leaves(parts):
        if isinstance(leaf, torch.Tensor):
            found[path] = _print_tensor(leaf)
        elif isinstance(leaf, _PLAIN):
            found[path] = repr(leaf)
    return found


def _print_tensor(tensor: torch.Tensor) -> str:
    state = xxhash.xxh3_64(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
    flat = tensor.detach().contiguous().reshape(-1)
    for start in range(0, flat.numel(), _SLICE):
        state.update(sample_bytes(flat[start : start + _SLICE]))
    return str(state.hexdigest())


def differing(saved: Mapping[str, str], live: Mapping[str, str], *, is_same_machine: bool = True) -> list[str]:
    """The places whose prints differ, or that one side lacks.

    Args:
        saved: prints of what was read.
        live: prints of the live objects.
        is_same_machine: in other versions, optimizers and schedulers may have settings that were not there.
    """
    places = {**saved, **live} if is_same_machine else saved
    return [path.lstrip(".") for path in places if saved.get(path) != live.get(path)]
