"""NumPy's global generator, saved and put back in a few microseconds.

``get_state`` and ``set_state`` cost about 50 µs each, twice a batch where the data is loaded in the training process.
NumPy documents the address of a bit generator's state (``BitGenerator.ctypes``), so the 2,500 bytes of an MT19937 can
be copied directly. What lies outside them is the second half of a pair of Gaussian draws, kept by ``RandomState``. A
draw tells whether there is one: it comes back and the bytes do not move, or else a new pair moves them, and they are
put back. Other generators take the slow, public way, and so do all of them when the layout is not the one expected.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any, NamedTuple

import numpy as np

__all__ = ["NumpyState", "put_back_numpy", "save_numpy", "seed_numpy"]

_WORDS_BYTES = 624 * 4
_STRUCT_BYTES = _WORDS_BYTES + ctypes.sizeof(ctypes.c_int)


class NumpyState(NamedTuple):
    """One saved state: the words of an MT19937, or else what `numpy.random.get_state` gives."""

    generator: Any
    raw: bytes | None
    state: dict[str, Any] | None


_bit_generator = np.random.mtrand.get_bit_generator


def _address(generator: Any) -> int | None:
    return int(generator.ctypes.state_address) if _LAYOUT_KNOWN and type(generator) is np.random.MT19937 else None


def _probe_layout() -> bool:
    """Whether an MT19937's state lies in memory as 624 words and a position."""
    try:
        probe = np.random.MT19937(12345)
        probe.random_raw(3)
        raw = ctypes.string_at(int(probe.ctypes.state_address), _STRUCT_BYTES)
        expected = probe.state["state"]
        position = int.from_bytes(raw[_WORDS_BYTES:], sys.byteorder)
        return (
            bool((np.frombuffer(raw[:_WORDS_BYTES], np.uint32) == expected["key"]).all())
            and position == expected["pos"]
        )
    except (AttributeError, ValueError, TypeError, KeyError):
        return False


_LAYOUT_KNOWN = _probe_layout()


def _take_pending(address: int) -> float | None:
    """The pending Gaussian, which is gone then; the words may move."""
    position = ctypes.c_int.from_address(address + _WORDS_BYTES)
    before = position.value
    value = float(np.random.standard_normal())
    if position.value == before:
        return value
    np.random.standard_normal()  # the second of the new pair
    return None


def _full_state(raw: bytes, gauss: float) -> dict[str, Any]:
    words = {
        "key": np.frombuffer(raw[:_WORDS_BYTES], np.uint32),
        "pos": int.from_bytes(raw[_WORDS_BYTES:], sys.byteorder),
    }
    return {"bit_generator": "MT19937", "state": words, "has_gauss": 1, "gauss": gauss}


def save_numpy() -> NumpyState:
    """The state of NumPy's global generator, which stays as it is."""
    generator = _bit_generator()
    address = _address(generator)
    if address is None:
        return NumpyState(generator, None, np.random.get_state(legacy=False))
    raw = ctypes.string_at(address, _STRUCT_BYTES)
    pending = _take_pending(address)
    saved = NumpyState(generator, raw, None if pending is None else _full_state(raw, pending))
    _write(saved, address)
    return saved


def put_back_numpy(saved: NumpyState) -> None:
    """Put NumPy's global generator back to ``saved``."""
    if _bit_generator() is not saved.generator:
        np.random.mtrand.set_bit_generator(saved.generator)
    address = _address(saved.generator)
    if address is not None:
        _take_pending(address)
    _write(saved, address)


def _write(saved: NumpyState, address: int | None) -> None:
    if saved.state is not None:
        np.random.set_state(saved.state)
    elif address is not None and saved.raw is not None:
        ctypes.memmove(address, saved.raw, _STRUCT_BYTES)


def seed_numpy(seed: int) -> None:
    """Seed NumPy's global generator from 32 bits."""
    np.random.seed(seed)
    if type(_bit_generator()) is not np.random.MT19937:  # of another kind NumPy keeps a pending Gaussian
        np.random.set_state({**np.random.get_state(legacy=False), "has_gauss": 0, "gauss": 0.0})
