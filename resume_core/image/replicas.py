"""What one rank has otherwise than rank 0, of trees that are meant to be the same on all ranks.

Parameters and moments are the same by the contract of data parallelism. Small things are not always: a metric that is
monitored without being synchronised, the schedule that follows it, buffers that are not broadcast. So rank 0 tells the
others digests of the structure and of each small tensor, and each rank keeps what it has otherwise::

    rank 0      fingerprint(flat)                     told to all
    rank k      own_part(flat, fingerprint)           written to the files of rank k
                with_own_part(structure, tensors, own)  on a restore, before `unflatten`
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import xxhash

from resume_core.image.encode import Flat
from resume_core.text import dumps

__all__ = ["OwnPart", "fingerprint", "own_part", "with_own_part"]

_MAX_BYTES = 256 * 1024  # of a tensor that is compared
_STRUCTURE = ""  # no tensor has this name


@dataclass(frozen=True)
class OwnPart:
    """What a rank has otherwise than rank 0.

    Attributes:
        structure: JSON of its whole tree, None when that is the same.
        shared: names of the tensors that it takes from rank 0.
        tensors: its own, by name.
    """

    structure: Any = None
    shared: tuple[str, ...] = ()
    tensors: Mapping[str, torch.Tensor] = field(default_factory=dict)


def _digest(data: Any) -> str:
    return xxhash.xxh3_128_hexdigest(data)


def _small(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: t for name, t in tensors.items() if 0 < t.numel() * t.element_size() <= _MAX_BYTES}


def _digests(tensors: Mapping[str, torch.Tensor]) -> dict[str, str]:
    """Of each tensor's elements; one copy for each type and device, as many small ones from a GPU would be slow."""
    groups: dict[Any, list[str]] = defaultdict(list)
    for name, tensor in tensors.items():
        groups[tensor.dtype, tensor.device].append(name)
    found = {}
    for names in groups.values():
        flat = [tensors[name].detach().reshape(-1).contiguous().view(torch.uint8) for name in names]
        data: Any = memoryview(torch.cat(flat).cpu().numpy())  # type: ignore[arg-type]
        start = 0
        for name, part in zip(names, flat, strict=True):
            found[name] = _digest(data[start : start + part.numel()])
            start += part.numel()
    return found


def fingerprint(flat: Flat) -> dict[str, str]:
    """By name, type, shape and strides of each tensor and a digest of small ones; and that of the structure."""
    digests = _digests(_small(flat.tensors))
    described = {
        name: f"{t.dtype} {tuple(t.shape)} {t.stride()} {digests.get(name, '')}" for name, t in flat.tensors.items()
    }
    return {_STRUCTURE: _digest(dumps(flat.structure)), **described}


def own_part(flat: Flat, first: Mapping[str, str]) -> OwnPart:
    """What ``flat`` has otherwise than the tree whose `fingerprint` is ``first``."""
    mine = fingerprint(flat)
    differing = {name for name in mine if name != _STRUCTURE and mine[name] != first.get(name)}
    same_structure = mine[_STRUCTURE] == first[_STRUCTURE]
    if same_structure and not differing:
        return OwnPart(shared=tuple(flat.tensors))
    return OwnPart(
        None if same_structure else flat.structure,
        tuple(name for name in flat.tensors if name not in differing),
        {name: flat.tensors[name] for name in flat.tensors if name in differing},
    )


def with_own_part(
    structure: Any, tensors: Mapping[str, torch.Tensor], own: OwnPart
) -> tuple[Any, dict[str, torch.Tensor]]:
    """Structure and tensors of a rank, from those of rank 0 and what it has otherwise.

    Raises:
        KeyError: a tensor that it shares is not among ``tensors``.
    """
    mine = {**{name: tensors[name] for name in own.shared}, **own.tensors}
    return (structure if own.structure is None else own.structure), mine
