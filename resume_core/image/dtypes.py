"""The element types an image can hold, and how a safetensors file names them.

Codes are those of the format's reference implementation (``enum Dtype`` in ``safetensors/src/tensor.rs``,
https://github.com/huggingface/safetensors). A type without a code of its own travels in a *carrier*, a type of the
file that has the same bytes; the structure beside the file says what it really is.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from resume_core.carried import CARRIED


@dataclass(frozen=True)
class DType:
    """How one element type is written.

    Attributes:
        name: its name in the structure, ``torch.<name>``.
        dtype: the torch type.
        code: the safetensors code in the header.
        carrier: the torch type that ``code`` stands for; ``dtype`` itself when the format has it.
        num_carriers: carrier elements to one element; above 1 the header's shape has it as a last dimension.
    """

    name: str
    dtype: torch.dtype
    code: str
    carrier: torch.dtype
    num_carriers: int = 1


_NATIVE = {
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "int16": "I16",
    "uint16": "U16",
    "int32": "I32",
    "uint32": "U32",
    "int64": "I64",
    "uint64": "U64",
    "float16": "F16",
    "bfloat16": "BF16",
    "float32": "F32",
    "float64": "F64",
    "complex64": "C64",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "float8_e4m3fnuz": "F8_E4M3FNUZ",
    "float8_e5m2fnuz": "F8_E5M2FNUZ",
    "float8_e8m0fnu": "F8_E8M0",
}


def _known() -> list[DType]:
    """The types of this torch: older ones lack some of the names."""
    native = [
        DType(name, found, code, found)
        for name, code in _NATIVE.items()
        if isinstance(found := getattr(torch, name, None), torch.dtype)
    ]
    carried = [
        DType(name, found, how.code, getattr(torch, how.carrier), how.num_carriers)
        for name, how in CARRIED.items()
        if isinstance(found := getattr(torch, name, None), torch.dtype)
    ]
    return native + carried


BY_DTYPE: dict[torch.dtype, DType] = {entry.dtype: entry for entry in _known()}
"""Every element type that can be saved."""

BY_NAME: dict[str, DType] = {entry.name: entry for entry in BY_DTYPE.values()}
"""The same by the name in the structure."""

BY_CODE: dict[str, torch.dtype] = {e.code: e.dtype for e in BY_DTYPE.values() if e.dtype == e.carrier}
"""Safetensors code to torch type."""
