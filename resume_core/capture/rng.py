"""The global random generators: capture, apply, seed, and blocks that leave them as they were."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

from resume_core.capture.numpy_rng import NUMPY, NumpyState, memory_of, put_back_numpy, save_numpy, seed_numpy
from resume_core.capture.python_rng import (
    NUM_WORDS,
    PYTHON,
    PYTHON_POSITION,
    PYTHON_WORDS,
    put_back_python,
    save_python,
    set_words,
)

__all__ = [
    "Stream",
    "apply_rng",
    "capture_rng",
    "derive",
    "extend",
    "native_states",
    "preserved_rng",
    "put_back_rng",
    "save_rng",
    "seed_parts",
    "seed_rng",
    "split_seed",
]

_MASK = (1 << 64) - 1
_FIBONACCI = 0x9E3779B97F4A7C15
RngState = tuple[Any, NumpyState, torch.Tensor, Any]


_WORDS: Any = memory_of(NUMPY._bit_generator)
_seed_words: Any = getattr(NUMPY._bit_generator, "_legacy_seeding", None)
if _WORDS is None or PYTHON_WORDS is None:
    _seed_words = None  # the public functions it is
else:
    _WORDS = _WORDS[: NUM_WORDS * 4]
_seed_numpy = NUMPY.seed
_seed_torch = torch.default_generator.manual_seed


def derive(*words: int) -> int:
    """A 64-bit hash of integers: the one source of every seed in the data path.

    Each word is folded in with the finaliser of SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom
    number generators", OOPSLA 2014), so nearby words give unrelated results.

    Args:
        words: any integers; only their lowest 64 bits count.

    Returns:
        An integer in [0, 2**64).
    """
    value = 0
    for word in words:
        value = extend(value, word)
    return value


def extend(value: int, word: int) -> int:
    """``derive(*words, word)``, given ``derive(*words)``: one step, for what is done for each sample."""
    value = ((value ^ (word & _MASK)) + _FIBONACCI) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def split_seed(seed: int) -> tuple[int, int, int]:
    """What Python's, NumPy's and torch's generators are seeded with, 32 bits each, from one 64-bit number.

    All three are MT19937: fed the same bits, they would draw the same numbers. NumPy and torch get disjoint halves,
    Python the upper half of a product, which every bit reaches (Fibonacci hashing: Knuth, The Art of Computer
    Programming, vol. 3, section 6.4).
    """
    return ((seed * _FIBONACCI) & _MASK) >> 32, seed & 0xFFFFFFFF, seed >> 32


def seed_parts(of_python: int, of_numpy: int, of_torch: int) -> None:
    """Seed the global generators with what `split_seed` gave.

    This runs before every sample, with caches that the sample before has emptied, so it takes few different ways:
    NumPy's seeding makes Python's words too, in one pass where ``random.seed`` makes three, and torch's generator is
    seeded directly, because ``torch.manual_seed`` also visits every accelerator.
    """
    if _seed_words is not None:
        _seed_words(of_python)
        PYTHON_WORDS[:] = _WORDS
        PYTHON_POSITION[0] = NUM_WORDS
        PYTHON.gauss_next = None
    else:
        set_words(np.random.RandomState(of_python).get_state(legacy=False)["state"]["key"].tolist())
    try:
        _seed_numpy(of_numpy)
    except TypeError:  # the generator behind it was exchanged for one of another kind
        seed_numpy(of_numpy)
    _seed_torch(of_torch)


def seed_rng(seed: int) -> None:
    """Seed Python's, NumPy's and torch's global CPU generators from one 64-bit number."""
    seed_parts(*split_seed(seed))


def _cuda_in_use() -> bool:
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def capture_rng() -> dict[str, Any]:
    """The state of every global generator, as a tree of tensors and plain values.

    CUDA generators are included when CUDA is in use. Nothing is drawn.
    """
    version, words, gauss = random.getstate()
    state: dict[str, Any] = {
        "python": {"version": version, "words": torch.tensor(words, dtype=torch.int64), "gauss": gauss},
        "numpy": np.random.get_state(legacy=False),
        "torch": torch.get_rng_state(),
    }
    if _cuda_in_use():
        state["cuda"] = torch.cuda.get_rng_state_all()
    return state


def apply_rng(state: Mapping[str, Any]) -> None:
    """Put the global generators back to what `capture_rng` saw.

    Raises:
        ValueError: NumPy's global generator is of another kind than the captured one.
    """
    python = state["python"]
    random.setstate((python["version"], tuple(python["words"].tolist()), python["gauss"]))
    np.random.set_state(state["numpy"])
    torch.set_rng_state(state["torch"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(state["cuda"])


def native_states(state: Mapping[str, Any]) -> tuple[Any, Any, torch.Tensor, list[torch.Tensor] | None]:
    """What `capture_rng` saw as the functions of each library would have given it.

    Returns:
        ``random.getstate()``, ``np.random.get_state()``, ``torch.get_rng_state()``, and
        ``torch.cuda.get_rng_state_all()`` or None without CUDA.
    """
    python, numpy = state["python"], state["numpy"]
    if numpy["bit_generator"] == "MT19937":  # of others NumPy gives the dict itself
        inner = numpy["state"]
        numpy = ("MT19937", inner["key"], inner["pos"], numpy["has_gauss"], numpy["gauss"])
    words = (python["version"], tuple(python["words"].tolist()), python["gauss"])
    return words, numpy, state["torch"], state.get("cuda")


def save_rng() -> RngState:
    """The state of the global generators, for `put_back_rng` in the same process. Nothing is drawn."""
    cuda = torch.cuda.get_rng_state_all() if _cuda_in_use() else None
    return save_python(), save_numpy(), torch.get_rng_state(), cuda


def put_back_rng(saved: RngState) -> None:
    """Put the global generators back to ``saved``."""
    put_back_python(saved[0])
    put_back_numpy(saved[1])
    torch.set_rng_state(saved[2])
    if saved[3] is not None:
        torch.cuda.set_rng_state_all(saved[3])


@contextlib.contextmanager
def preserved_rng() -> Iterator[None]:
    """A block after which every global generator is as it was before, whatever was drawn or seeded inside."""
    saved = save_rng()
    try:
        yield
    finally:
        put_back_rng(saved)


class Stream:
    """A random stream of its own for code that draws from the global generators.

    Inside ``with stream:`` the global generators continue this stream; outside they are untouched. Used for samplers
    that draw from them: how far ahead the loader fetches then cannot move training's randomness.
    """

    def __init__(self, seed: int) -> None:
        self._seed: int | None = seed
        self._state: RngState | None = None
        self._outside: RngState | None = None

    def __enter__(self) -> Stream:
        self._outside = save_rng()
        if self._state is None:
            assert self._seed is not None
            seed_rng(self._seed)
        else:
            put_back_rng(self._state)
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._state = save_rng()
        assert self._outside is not None
        put_back_rng(self._outside)
