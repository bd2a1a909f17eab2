"""Tensors as a file would give them back, without the file: for state that travels inside somebody else's format."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from resume_core.image.dtypes import BY_DTYPE
from resume_core.image.quiet import plain_tensors
from resume_core.image.views import physical_order


def loose(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Dense copies of ``Flat.tensors`` in the types and shapes that :func:`unflatten` takes.

    Args:
        tensors: name to live tensor, as :func:`flatten` gives them.
    """
    with plain_tensors(), torch.no_grad():
        return {name: _elements(tensor) for name, tensor in tensors.items()}


def _elements(tensor: torch.Tensor) -> torch.Tensor:
    entry = BY_DTYPE[tensor.dtype]
    dense = tensor.resolve_conj().resolve_neg().clone()  # clone() keeps the order of dimensions and closes holes
    elements = dense.permute(physical_order(dense.stride()))
    if entry.num_carriers > 1:
        return torch.view_as_real(elements)
    return elements if entry.carrier == entry.dtype else elements.view(entry.carrier)
