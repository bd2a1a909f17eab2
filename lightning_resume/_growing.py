"""What grows as a run goes on, as a tensor whose size seldom changes.

A checkpoint's files are laid out once and laid out anew whenever a tensor has another size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

__all__ = ["grown_bytes", "grown_floats", "pack_bytes", "pack_floats"]

_SMALLEST = 512  # elements


def pack_bytes(data: bytes) -> dict[str, Any]:
    """``data`` as a state, for `grown_bytes`."""
    return _pack(np.frombuffer(data, np.uint8))


def grown_bytes(state: Mapping[str, Any]) -> bytes:
    """What `pack_bytes` was given."""
    return bytes(_unpack(state).tobytes())


def pack_floats(values: Sequence[float]) -> dict[str, Any]:
    """Numbers, each as the double it is, as a state for `grown_floats`."""
    return _pack(np.asarray(values, np.float64))


def grown_floats(state: Mapping[str, Any]) -> list[float]:
    """What `pack_floats` was given."""
    return [float(value) for value in _unpack(state)]


def _pack(values: np.ndarray[Any, Any]) -> dict[str, Any]:
    room = max(_SMALLEST, 1 << (len(values) - 1).bit_length()) if len(values) else _SMALLEST
    padded = np.zeros(room, values.dtype)
    padded[: len(values)] = values
    return {"length": len(values), "values": torch.from_numpy(padded)}


def _unpack(state: Mapping[str, Any]) -> np.ndarray[Any, Any]:
    return np.asarray(state["values"].cpu().numpy()[: state["length"]])
