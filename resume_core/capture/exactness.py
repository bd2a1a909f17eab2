"""Which differences of machines, code and packages may change the last bits of what is computed."""

from __future__ import annotations

import re
from typing import Any

__all__ = ["ends_exactness"]

_MOVES_NUMBERS = {f"environment.{name}" for name in ("cpu", "cpu_capability", "gpus", "cuda", "cudnn")}
_CODE = {"code.commit", "code.diff", "code.script"}
_OURS = "packages.exact-resume"
_RELEASE = re.compile(r"(?:\d+!)?(\d+)(?:\.(\d+))?[^+]*(?:\+(.*))?")


def ends_exactness(name: str, saved: Any, current: Any) -> bool:
    """Whether a difference that blocks nothing may still change the last bits, or more, from here on.

    Those are another processor or GPU, another CUDA or cuDNN, other code, and another version of a package but for
    its patch level. Promised is exactness on the same of all of these.

    Args:
        name: of the fact.
        saved: its value in the checkpoint.
        current: its value in the run that resumes.
    """
    if name == "environment.gpus":  # a machine with more of the same is the same
        return set(map(str, saved or ())) != set(map(str, current or ()))
    if name in _MOVES_NUMBERS:
        return True
    if name in _CODE:
        return saved is not None and current is not None
    return name.startswith("packages.") and name != _OURS and _release(saved) != _release(current)


def _release(version: Any) -> Any:
    found = _RELEASE.fullmatch(str(version))
    return found.groups() if found else version
