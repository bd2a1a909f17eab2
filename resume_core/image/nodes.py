"""How a tensor appears in the structure, and which cannot."""

from __future__ import annotations

from typing import Any

import torch

from resume_core.image.dtypes import BY_DTYPE
from resume_core.image.views import c_strides, stored_strides

__all__ = ["refusal", "tensor_node"]


def refusal(tensor: torch.Tensor) -> str:
    """Why ``tensor`` cannot be stored; empty when it can."""
    if tensor.layout is torch.strided and tensor.dtype in BY_DTYPE and not (tensor.is_nested or tensor.is_meta):
        return ""
    if tensor.is_nested:
        return "a nested tensor"
    if tensor.layout is not torch.strided:
        return f"a tensor of layout {tensor.layout}"
    if tensor.is_meta:
        return "a tensor on the meta device, which has no values"
    if tensor.is_quantized:
        return f"a quantized tensor ({tensor.dtype})"
    return f"a tensor of {tensor.dtype}"


def tensor_node(name: str, first: str, tensor: torch.Tensor) -> dict[str, Any]:
    """The node of a tensor whose entry is ``name``; that of ``first`` where it is the same view as an earlier one."""
    kind = "parameter" if type(tensor) is torch.nn.Parameter else "tensor"
    node: dict[str, Any] = {"$": kind, "alias": first} if first != name else _described(kind, name, tensor)
    if tensor.requires_grad:
        node["requires_grad"] = True
    return node


def _described(kind: str, name: str, tensor: torch.Tensor) -> dict[str, Any]:
    shape = tensor.shape
    node = {"$": kind, "name": name, "dtype": BY_DTYPE[tensor.dtype].name, "shape": [*shape]}
    in_order = c_strides(shape)
    if tensor.stride() != in_order and (strides := stored_strides(tensor)) != in_order:
        node["stride"] = list(strides)
    return node
