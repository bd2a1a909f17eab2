"""Memory that a file is read into: live tensors that lie as the file has them, fresh ones for the rest.

A live tensor is taken only when the bytes of the file are its bytes: the type, the shape and the order of its elements
are those of the saved one. What is in doubt gets fresh memory, and is copied by whoever loads it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from resume_core.collector import collector_paused
from resume_core.image.dtypes import BY_DTYPE
from resume_core.image.quiet import plain_tensors, unfilled_memory
from resume_core.image.read import Header, Stored
from resume_core.image.views import c_strides, file_shape, is_dense, same_view

__all__ = ["Target", "live_targets", "make_target"]

_CPU = torch.device("cpu")
_TENSORS = ("tensor", "parameter")  # kinds of nodes of a structure


@dataclass(frozen=True)
class Target:
    """Where the data of a file goes.

    Attributes:
        tensors: name to tensor, in the types and shapes of the header: what :func:`unflatten` takes.
        memory: theirs, flat and writable, in the order of the file; valid as long as ``tensors`` live.
    """

    tensors: Mapping[str, torch.Tensor]
    memory: list[memoryview]


def make_target(header: Header, live: Mapping[str, torch.Tensor] | None = None) -> Target:
    """Tensors for the data of a file, each with a storage of its own, so that none keeps the whole file in memory.

    Args:
        header: of the file; its size must be known to be true, as memory of that size is taken.
        live: what :func:`live_targets` found; their memory is used in place of fresh one.
    """
    live = live or {}
    with plain_tensors(), unfilled_memory(), collector_paused():
        tensors = {
            name: _over(live[name], stored) if name in live else _fresh(stored)
            for name, stored in header.stored.items()
        }
    ordered = sorted(header.stored, key=lambda name: header.stored[name].offset)
    return Target(tensors, [_memory(tensors[name]) for name in ordered if header.stored[name].nbytes])


def live_targets(
    header: Header, structure: Any, live: Mapping[str, torch.Tensor], *, plain: bool
) -> dict[str, torch.Tensor]:
    """Those of ``live`` that the data of a file can be read into.

    Args:
        header: of the file.
        structure: what it will be unflattened with; a malformed one is found out there.
        live: name to tensor.
        plain: whether the file was laid out in C order.
    """
    with collector_paused():
        saved = dict(_described(structure))
        held = {name: tensor for name, tensor in live.items() if _has_memory(tensor)}
        fitting = {
            name: tensor
            for name, tensor in held.items()
            if name in header.stored and name in saved and _fits(tensor, header.stored[name], saved[name], plain=plain)
        }
        shared = _sharing(held, fitting)
        return {name: tensor for name, tensor in fitting.items() if name not in shared}


def _described(structure: Any) -> Iterator[tuple[str, tuple[Any, Any, Any]]]:
    """Name, dtype, shape and strides of each tensor of a structure that has its own data."""
    waiting = [structure]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            if node.get("$") in _TENSORS and isinstance(node.get("name"), str):
                yield node["name"], (node.get("dtype"), node.get("shape"), node.get("stride"))
            else:
                waiting += node.values()
        elif isinstance(node, list):
            waiting += node


def _fits(tensor: torch.Tensor, stored: Stored, saved: tuple[Any, Any, Any], *, plain: bool) -> bool:
    if not _is_ordinary(tensor):
        return False
    entry, shape, strides = BY_DTYPE[tensor.dtype], tensor.shape, tensor.stride()
    in_order = strides == c_strides(shape)
    if not in_order and (plain or not is_dense(shape, strides)):
        return False
    as_saved = (entry.name, list(shape), None if in_order else list(strides))
    in_file = (entry.carrier, file_shape(entry, shape, strides, plain=plain))
    return saved == as_saved and in_file == (stored.dtype, stored.shape)


def _is_ordinary(tensor: torch.Tensor) -> bool:
    """Whether its elements are what lies in its memory, and that can be written by anybody."""
    return tensor.dtype in BY_DTYPE and not (tensor.is_conj() or tensor.is_neg() or tensor.is_inference())


def _sharing(held: Mapping[str, torch.Tensor], fitting: Mapping[str, torch.Tensor]) -> set[str]:
    """Names of ``fitting`` whose memory another one of ``held`` has a part of: two would be read into one place.

    Not those that are the same view and the only one of it in the file: tied weights.
    """
    found: set[str] = set()
    group: list[str] = []
    end = 0
    for start, stop, name in sorted((*_span(tensor), name) for name, tensor in held.items()):
        if start >= end:
            found |= _conflicting(group, held, fitting)
            group = []
        group.append(name)
        end = max(end, stop)
    return found | _conflicting(group, held, fitting)


def _conflicting(group: list[str], held: Mapping[str, torch.Tensor], fitting: Mapping[str, torch.Tensor]) -> set[str]:
    if len(group) <= 1:
        return set()
    targets = {name for name in group if name in fitting}
    tied = all(same_view(held[group[0]], held[name]) for name in group[1:])
    return set() if tied and len(targets) <= 1 else targets


def _has_memory(tensor: torch.Tensor) -> bool:
    return (
        type(tensor) in (torch.Tensor, torch.nn.Parameter)  # what others are made of is theirs to know
        and tensor.device.type == "cpu"
        and tensor.layout == torch.strided
        and tensor.numel() > 0
    )


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    """First address, and that after the last."""
    start = tensor.data_ptr()
    if tensor.is_contiguous():
        return start, start + tensor.nbytes
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return start, start + (last + 1) * tensor.element_size()


def _over(tensor: torch.Tensor, stored: Stored) -> torch.Tensor:
    """The memory of a live tensor, in the type and shape of the file."""
    if tensor.dtype == stored.dtype and tensor.shape == stored.shape and tensor.is_contiguous():
        return tensor.detach()
    flat = tensor.detach().as_strided((tensor.numel(),), (1,))
    return flat.view(stored.dtype).view(stored.shape)


def _fresh(stored: Stored) -> torch.Tensor:
    # not in huge pages: they save 0.2 s a GiB where memory is there; in a virtual machine whose host takes back what is
    # free (by a balloon device) a first touch of them took 1.8 to 3 s a GiB, and that of small pages 0.3 to 0.9 s
    return torch.empty(stored.shape, dtype=stored.dtype, device=_CPU)


def _memory(tensor: torch.Tensor) -> memoryview:
    # several times faster than through numpy, which has no name for some types either
    return memoryview((ctypes.c_ubyte * tensor.nbytes).from_address(tensor.data_ptr())).cast("B")
