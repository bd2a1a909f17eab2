"""Modes of the thread and of the process that must not reach what the image package does, nor the other way round."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any

import torch
import torch.utils.deterministic

_setting = Lock()  # of the process: of two threads at once, one would put back what the other had set


@contextmanager
def plain_tensors() -> Iterator[None]:
    """Tensors made inside are ordinary ones, whatever mode the caller is in, and no graph is recorded.

    A view made in inference mode could not be written to outside of it, and a restored one could not be trained.
    """
    with torch.inference_mode(False), torch.no_grad():
        yield


@contextmanager
def unfilled_memory() -> Iterator[None]:
    """Fresh tensors are left as the system gives them, with ``torch.use_deterministic_algorithms`` too.

    That mode writes NaN into them first, which takes as long as reading them from the page cache.
    """
    settings: Any = torch.utils.deterministic
    with _setting:
        fills, settings.fill_uninitialized_memory = settings.fill_uninitialized_memory, False
        try:
            yield
        finally:
            settings.fill_uninitialized_memory = fills
