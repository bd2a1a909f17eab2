"""Python's global generator, saved, put back and seeded at less cost than through ``random``'s own functions.

``getstate`` builds a tuple of 625 integers, 12 µs a batch together with ``setstate``. CPython keeps the same 2,500
bytes in the generator object, behind the object's header (``RandomObject`` in Modules/_randommodule.c: the position,
then the words). Where a probe finds them there they are copied directly; elsewhere the public functions are used, with
the same result.
"""

from __future__ import annotations

import ctypes
import random
from typing import Any

__all__ = ["NUM_WORDS", "PYTHON", "PYTHON_POSITION", "PYTHON_WORDS", "put_back_python", "save_python", "set_words"]

NUM_WORDS = 624
_STRUCT_BYTES = ctypes.sizeof(ctypes.c_int) + NUM_WORDS * 4
PythonState = tuple[Any, Any]
"""The bytes, or the public state, and the pending Gaussian."""


def _memory_of(generator: random.Random) -> memoryview:
    """The position and the words, live. A view costs a tenth of a ctypes call once caches are cold."""
    address = id(generator) + object.__basicsize__
    return memoryview((ctypes.c_char * _STRUCT_BYTES).from_address(address)).cast("B")


def _probe_layout() -> bool:
    """Whether position and words lie where CPython has kept them since 2.3."""
    if type(getattr(random, "_inst", None)) is not random.Random:
        return False
    probe = random.Random(12345)
    probe.random()
    if type(probe).__basicsize__ < object.__basicsize__ + _STRUCT_BYTES:
        return False  # reading there could leave the object
    *words, position = probe.getstate()[1]
    return _memory_of(probe).cast("I").tolist() == [position, *words]


PYTHON: Any = getattr(random, "_inst", None)
"""The generator behind ``random.random``."""
_MEMORY = _memory_of(PYTHON) if _probe_layout() else None
PYTHON_POSITION: Any = None if _MEMORY is None else _MEMORY[: -NUM_WORDS * 4].cast("i")
PYTHON_WORDS: Any = None if _MEMORY is None else _MEMORY[-NUM_WORDS * 4 :]
"""Live views, None where the layout is not the one expected."""


def save_python() -> PythonState:
    """The state of Python's global generator. Nothing is drawn."""
    if _MEMORY is not None:
        return _MEMORY.tobytes(), PYTHON.gauss_next
    return random.getstate(), None


def put_back_python(saved: PythonState) -> None:
    """Put Python's global generator back to ``saved``, of this process."""
    if _MEMORY is not None:
        _MEMORY[:] = saved[0]
        PYTHON.gauss_next = saved[1]
    else:
        random.setstate(saved[0])


def set_words(words: list[int]) -> None:
    """Make Python's global generator begin with these 624 words, by the public functions."""
    random.setstate((random.Random.VERSION, (*words, NUM_WORDS), None))
