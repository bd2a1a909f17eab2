"""Element types that a safetensors file has no code for; without torch, so that exports of weights start at once."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["CARRIED", "Carried"]


class Carried(NamedTuple):
    """How the elements of such a type travel.

    Attributes:
        code: the safetensors code in the header.
        carrier: name of the torch type that ``code`` stands for.
        num_carriers: of its elements that make one.
    """

    code: str
    carrier: str
    num_carriers: int


CARRIED = {
    "complex32": Carried("F16", "float16", 2),
    "complex128": Carried("F64", "float64", 2),
    "float4_e2m1fn_x2": Carried("U8", "uint8", 1),  # the format's F4 counts half bytes, torch counts pairs
}
"""By the name in the structure."""
