"""NumPy's global generator, saved and put back in a few microseconds.

``get_state`` and ``set_state`` cost about 50 µs each, twice a batch where the data is loaded in the training process.
NumPy documents the address of a bit generator's state (``BitGenerator.ctypes``), so the 2,500 bytes of an MT19937 can
be compared and copied directly. What lies outside them is the second half of a pair of Gaussian draws, kept by
``RandomState``: it can only appear together with a draw, which changes the bytes, so a state whose bytes are those of
a saved state without a pending Gaussian *is* that state (but for one put together by hand: the words of the saved
state, and a Gaussian). Everything else takes the slow, public way, and so does all of it when the layout is not the
one expected.
"""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

import numpy as np

__all__ = ["NumpyState", "put_back_numpy", "save_numpy", "seed_numpy"]

_WORDS_BYTES = 624 * 4
_STRUCT_BYTES = _WORDS_BYTES + ctypes.sizeof(ctypes.c_int)


class NumpyState(NamedTuple):
    """One saved state: of which bit generator, as `numpy.random.get_state` gives it, and its bytes if an MT19937."""

    generator: Any
    state: dict[str, Any]
    raw: bytes | None


def _bit_generator() -> Any:
    return np.random.mtrand.get_bit_generator()


def _address(generator: Any) -> int | None:
    return int(generator.ctypes.state_address) if _LAYOUT_KNOWN and type(generator) is np.random.MT19937 else None


def _probe_layout() -> bool:
    """Whether an MT19937's state lies in memory as 624 words and a position."""
    try:
        probe = np.random.MT19937(12345)
        probe.random_raw(3)
        raw = ctypes.string_at(int(probe.ctypes.state_address), _STRUCT_BYTES)
        expected = probe.state["state"]
        position = int.from_bytes(raw[_WORDS_BYTES:], "little")
        return (
            bool((np.frombuffer(raw[:_WORDS_BYTES], np.uint32) == expected["key"]).all())
            and position == expected["pos"]
        )
    except (AttributeError, ValueError, TypeError, KeyError):
        return False


_LAYOUT_KNOWN = _probe_layout()
_last: NumpyState | None = None


def _is_plainly(raw: bytes, saved: NumpyState) -> bool:
    return raw == saved.raw and not saved.state["has_gauss"]


def save_numpy() -> NumpyState:
    """The state of NumPy's global generator. Nothing is drawn."""
    global _last
    generator = _bit_generator()
    address = _address(generator)
    raw = None if address is None else ctypes.string_at(address, _STRUCT_BYTES)
    if _last is not None and raw is not None and _last.generator is generator and _is_plainly(raw, _last):
        return _last
    saved = NumpyState(generator, np.random.get_state(legacy=False), raw)
    _last = saved
    return saved


def put_back_numpy(saved: NumpyState) -> None:
    """Put NumPy's global generator back to ``saved``."""
    global _last
    if _bit_generator() is not saved.generator:
        np.random.mtrand.set_bit_generator(saved.generator)
    address = _address(saved.generator)
    if address is None or saved.raw is None or saved.state["has_gauss"]:
        np.random.set_state(saved.state)
        return
    np.random.seed(0)  # drops a pending Gaussian, which the bytes below do not hold
    ctypes.memmove(address, saved.raw, _STRUCT_BYTES)
    _last = saved


def seed_numpy(seed: int) -> None:
    """Seed NumPy's global generator from 32 bits."""
    np.random.seed(seed)
    if type(_bit_generator()) is not np.random.MT19937:  # of another kind NumPy keeps a pending Gaussian
        np.random.set_state({**np.random.get_state(legacy=False), "has_gauss": 0, "gauss": 0.0})
