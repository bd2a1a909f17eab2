"""Nested state to strict JSON with typed leaves and a table of tensors, and back.

Plain JSON stands for itself: dict with text keys, list, str, int, finite float, bool, None. Anything else is an object
``{"$": kind, ...}`` of a closed table (:mod:`~resume_core.image.leaves`, :mod:`~resume_core.image.encode`). No class is
looked up by a name from a file, and no code comes from it.

A tensor node has ``name`` (of the entry in the safetensors file), ``dtype``, ``shape``, ``stride`` (in elements; absent
in C order), ``requires_grad`` (when True); one that is the same view of the same memory as an earlier one has only
``alias``, the name of that one.
"""

from __future__ import annotations

from resume_core.image.decode import unflatten
from resume_core.image.encode import MAX_DEPTH, Flat, flatten
from resume_core.image.leaves import Recorded, register_leaf
from resume_core.text import dumps, loads

__all__ = ["Flat", "flatten", "unflatten", "dumps", "loads", "register_leaf", "Recorded", "MAX_DEPTH"]
