"""Tensors over the bytes of a whole safetensors file, by the header as the package reads it."""

from __future__ import annotations

import torch

from resume_core.image import parse_header
from resume_core.image.quiet import plain_tensors


def parse(buffer: bytes | bytearray | memoryview, *, path: str = "") -> dict[str, torch.Tensor]:
    """Name to tensor, in the types and shapes of the header: what `unflatten` takes."""
    header = parse_header(buffer, path=path)
    writable = bytearray(buffer) if memoryview(buffer).readonly else buffer

    def tensor(stored):
        if stored.nbytes == 0:
            return torch.empty(stored.shape, dtype=stored.dtype)
        raw = torch.frombuffer(writable, dtype=torch.uint8, count=stored.nbytes, offset=stored.offset)
        aligned = raw if raw.data_ptr() % stored.dtype.itemsize == 0 else raw.clone()
        return aligned.view(stored.dtype).view(stored.shape)

    with plain_tensors():
        return {name: tensor(stored) for name, stored in header.stored.items()}
