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

__all__ = ["NUMPY", "NumpyState", "memory_of", "put_back_numpy", "save_numpy", "seed_numpy"]

_WORDS_BYTES = 624 * 4
_STRUCT_BYTES = _WORDS_BYTES + ctypes.sizeof(ctypes.c_int)

NUMPY = np.random.mtrand._rand
"""The `numpy.random.RandomState` behind ``numpy.random.rand``; others may exchange its bit generator."""


class NumpyState(NamedTuple):
    """One saved state: the words of an MT19937, or else what `numpy.random.get_state` gives."""

    generator: Any
    raw: bytes | None
    state: dict[str, Any] | None


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
_last: tuple[Any, memoryview | None] = (None, None)


def memory_of(generator: Any) -> memoryview | None:
    """The words and the position of an MT19937, live; None for another generator or an unknown layout."""
    global _last
    if generator is _last[0] and _LAYOUT_KNOWN:
        return _last[1]
    memory = None
    if _LAYOUT_KNOWN and type(generator) is np.random.MT19937:
        address = int(generator.ctypes.state_address)
        memory = memoryview((ctypes.c_char * _STRUCT_BYTES).from_address(address)).cast("B")
    _last = generator, memory  # the generator too, so that the memory stays its own
    return memory


def _take_pending(memory: memoryview) -> float | None:
    """The pending Gaussian, which is gone then; the words may move."""
    before = memory[_WORDS_BYTES:].tobytes()
    value = float(NUMPY.standard_normal())
    if memory[_WORDS_BYTES:] == before:
        return value
    NUMPY.standard_normal()  # the second of the new pair
    return None


def _full_state(raw: bytes, gauss: float) -> dict[str, Any]:
    words = {
        "key": np.frombuffer(raw[:_WORDS_BYTES], np.uint32),
        "pos": int.from_bytes(raw[_WORDS_BYTES:], sys.byteorder),
    }
    return {"bit_generator": "MT19937", "state": words, "has_gauss": 1, "gauss": gauss}


def save_numpy() -> NumpyState:
    """The state of NumPy's global generator, which stays as it is."""
    generator = NUMPY._bit_generator
    memory = memory_of(generator)
    if memory is None:
        return NumpyState(generator, None, np.random.get_state(legacy=False))
    raw = memory.tobytes()
    pending = _take_pending(memory)
    saved = NumpyState(generator, raw, None if pending is None else _full_state(raw, pending))
    _write(saved, memory)
    return saved


def put_back_numpy(saved: NumpyState) -> None:
    """Put NumPy's global generator back to ``saved``."""
    if NUMPY._bit_generator is not saved.generator:
        np.random.mtrand.set_bit_generator(saved.generator)
    memory = memory_of(saved.generator)
    if memory is not None:
        _take_pending(memory)
    _write(saved, memory)


def _write(saved: NumpyState, memory: memoryview | None) -> None:
    if saved.state is not None:
        np.random.set_state(saved.state)
    elif memory is not None and saved.raw is not None:
        memory[:] = saved.raw


def seed_numpy(seed: int) -> None:
    """Seed NumPy's global generator from 32 bits."""
    np.random.seed(seed)
    if type(NUMPY._bit_generator) is not np.random.MT19937:  # of another kind NumPy keeps a pending Gaussian
        np.random.set_state({**np.random.get_state(legacy=False), "has_gauss": 0, "gauss": 0.0})
