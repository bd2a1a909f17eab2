"""Short prints of what a step worked with: its inputs, the random generators, the weights.

Whatever is large is sampled at a fixed stride, in the order in which it lies in memory: the same elements in each
process. A print of a batch costs a fraction of a millisecond, whatever the size of the batch.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from itertools import islice
from typing import Any

import numpy as np
import torch
import xxhash

from resume_core.capture.python_rng import save_python

__all__ = [
    "WeightSample",
    "leaves",
    "norms_of",
    "numbers_of",
    "print_inputs",
    "print_rng",
    "sample_bytes",
    "to_text",
]

_WHOLE_BYTES = 1 << 20  # a tensor up to this size is printed whole
_NUM_SAMPLED = 1 << 15  # elements of a larger one
_NUM_IN_NORM = 1 << 14  # elements of either: torch computes so few in one thread, and wakes no others for it
_NUM_OF_WEIGHT = 4  # elements of each parameter
_MAX_DEPTH = 8
_MAX_LEAVES = 4096  # of a batch, whose objects may know all of a dataset
_PLAIN = (str, bytes, int, float, complex, torch.Tensor, np.ndarray, np.generic, type(None))


def leaves(value: Any, path: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """What a tree of containers holds, each with its place; of an object of any other kind, its attributes."""
    if isinstance(value, _PLAIN):
        yield path, value
    elif depth > _MAX_DEPTH or isinstance(value, (type, Enum)):
        yield path, _name(value)  # not what ``repr`` says, which may be an address
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from leaves(item, f"{path}.{key}", depth + 1)
    elif isinstance(value, Sequence):
        for place, item in enumerate(value):
            yield from leaves(item, f"{path}.{place}", depth + 1)
    elif is_dataclass(value):
        for field in fields(value):
            yield from leaves(getattr(value, field.name, None), f"{path}.{field.name}", depth + 1)
    elif hasattr(value, "__dict__"):
        yield from leaves(vars(value), path, depth + 1)
    else:
        yield path, _name(value)


def _name(value: Any) -> str:
    return value.name if isinstance(value, Enum) else type(value).__name__


def _memory_order(tensor: torch.Tensor) -> torch.Tensor:
    """All elements in one dimension, as they lie in memory; a view where that has no holes."""
    tensor = tensor.detach()
    if not tensor.is_contiguous():
        tensor = tensor.permute(sorted(range(tensor.ndim), key=tensor.stride, reverse=True))
    return tensor.reshape(-1)


def sample_bytes(flat: torch.Tensor) -> memoryview:
    """The bytes of a one-dimensional tensor, on any device."""
    found: Any = flat.cpu().contiguous().view(torch.uint8).numpy()
    return memoryview(found)


def print_inputs(batch: Any) -> tuple[str, float]:
    """A digest of a batch as training gets it, and the norm of what was sampled of it."""
    state, squares = xxhash.xxh3_128(), 0.0
    for path, leaf in islice(_arrays_opened(leaves(batch)), _MAX_LEAVES):
        if isinstance(leaf, np.ndarray):
            leaf = torch.from_numpy(np.ascontiguousarray(leaf)) if leaf.dtype.kind in "fiub" else leaf.tobytes()
        if not isinstance(leaf, torch.Tensor):
            state.update(f"{path}={_plain_text(leaf)}".encode())
            continue
        state.update(f"{path}:{leaf.dtype}:{tuple(leaf.shape)}".encode())
        flat = _sampled(leaf)
        if flat.numel():
            state.update(sample_bytes(flat))
        if flat.is_floating_point():
            few = flat[:: flat.numel() // _NUM_IN_NORM | 1]
            squares += float(torch.linalg.vector_norm(few, dtype=torch.float64)) ** 2
    return str(state.hexdigest()), squares**0.5


def _arrays_opened(found: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """Arrays of objects as what they hold."""
    for path, leaf in found:
        holds_objects = isinstance(leaf, np.ndarray) and leaf.dtype.hasobject
        yield from leaves(leaf.tolist(), path) if holds_objects else ((path, leaf),)


def _plain_text(leaf: Any) -> str:
    """Of files the name alone: the folder of the data may be another one, or be called otherwise."""
    if isinstance(leaf, str) and os.path.isabs(leaf):
        leaf = os.path.basename(leaf)
    return repr(leaf)[:1000]


def _sampled(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.is_sparse:
        tensor = tensor.detach().coalesce().values()
    if tensor.layout != torch.strided or tensor.is_quantized:
        return torch.empty(0)
    flat = _memory_order(tensor)
    if flat.numel() * flat.element_size() <= _WHOLE_BYTES:
        return flat
    # odd, so that it falls on each column of a matrix with an even number of them
    return flat[:: flat.numel() // _NUM_SAMPLED | 1]


def print_rng() -> str:
    """A digest of the state of every global generator; nothing is drawn."""
    words, gauss = save_python()
    if not isinstance(words, bytes):
        _, (*plain, position), gauss = words
        words = np.asarray([position, *plain], np.uint32).tobytes()
    of_numpy = np.random.get_state(legacy=False)
    state = xxhash.xxh3_128(words)
    state.update(str(gauss).encode())
    for path, leaf in leaves(of_numpy):
        state.update(path.encode())
        state.update(leaf.tobytes() if isinstance(leaf, np.ndarray) else repr(leaf).encode())
    in_use = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    for found in (torch.get_rng_state(), *(torch.cuda.get_rng_state_all() if in_use else ())):
        state.update(sample_bytes(found))
    return str(state.hexdigest())


class WeightSample:
    """A few elements of every parameter, at fixed places, and the norms of them all.

    Args:
        parameters: live ones, by name.
    """

    def __init__(self, parameters: Mapping[str, torch.Tensor]) -> None:
        self.names = [name for name, tensor in parameters.items() if tensor.numel()]
        self._tensors = [parameters[name].detach() for name in self.names]
        self._mark = _places(self._tensors)
        self._views = [self._view(tensor) for tensor in self._tensors]

    def is_of(self, parameters: Mapping[str, torch.Tensor]) -> bool:
        """Whether it was made of these, and they lie where they lay."""
        return _places(parameters.values()) == self._mark

    @property
    def size_bytes(self) -> int:
        """Of all parameters."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self._tensors)

    @property
    def is_half(self) -> bool:
        """Whether any of them has less than single precision."""
        return any(tensor.is_floating_point() and tensor.element_size() < 4 for tensor in self._tensors)

    @staticmethod
    def _view(tensor: torch.Tensor) -> torch.Tensor:
        flat = _memory_order(tensor)
        step = max(flat.numel() // _NUM_OF_WEIGHT, 1)
        return flat[step // 2 :: step][:_NUM_OF_WEIGHT]

    def _values(self) -> list[torch.Tensor]:
        """The elements, one tensor for each device and kind; copies."""
        return [torch.cat([self._views[place] for place in places]).cpu() for places in _alike(self._views)]

    def digest(self) -> str:
        """Of the elements."""
        state = xxhash.xxh3_128()
        for values in self._values():
            state.update(sample_bytes(values))
        return str(state.hexdigest())

    def sizes(self) -> dict[str, str]:
        """The norm of every parameter, and the elements, in the order of the names; see `numbers_of`."""
        norms = [float("nan")] * len(self._tensors)
        real = [place for place, tensor in enumerate(self._tensors) if tensor.is_floating_point()]
        for place, norm in zip(real, norms_of([self._tensors[place] for place in real]), strict=True):
            norms[place] = norm
        values = [view.float().cpu().numpy() for view in self._views if not view.is_complex()]
        return {"norms": to_text(np.asarray(norms)), "values": to_text(np.concatenate(values or [np.empty(0)]))}


def _places(tensors: Iterable[torch.Tensor]) -> tuple[int, ...]:
    """Where they lie."""
    return tuple(tensor.data_ptr() for tensor in tensors if tensor.numel())


def _alike(tensors: Sequence[torch.Tensor]) -> list[list[int]]:
    """The places of those that lie on one device and are of one type, which torch computes together."""
    groups: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    for place, tensor in enumerate(tensors):
        groups.setdefault((tensor.device, tensor.dtype), []).append(place)
    return list(groups.values())


def norms_of(tensors: Sequence[torch.Tensor]) -> list[float]:
    """The norm of each."""
    found = [0.0] * len(tensors)
    for places in _alike(tensors):
        norms = torch.stack(torch._foreach_norm([tensors[place] for place in places])).tolist()
        for place, norm in zip(places, norms, strict=True):
            found[place] = norm
    return found


def to_text(values: Any) -> str:
    """Numbers as text, in single precision; see `numbers_of`."""
    return base64.b64encode(values.astype("<f4").tobytes()).decode()


def numbers_of(text: str) -> Any:
    """The float32 numbers of a text that `to_text` gave.

    Raises:
        ValueError: it is none.
    """
    return np.frombuffer(base64.b64decode(text, validate=True), "<f4")
