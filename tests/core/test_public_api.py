"""What users can import, call and catch is frozen: a change of it is a change of `public_api.txt` that somebody sees.

After a change that is meant: `python tests/core/test_public_api.py` writes the file anew, and CHANGELOG.md says what
users have to do.
"""

from __future__ import annotations

import importlib
import inspect
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import resume_core

FROZEN = Path(__file__).parents[1] / "public_api.txt"
PACKAGES = ("resume_core", "lightning_resume", "accelerate_resume")


def public_api() -> str:
    """A line for each name that is exported, its parameters with their defaults, and its public members."""
    return "\n".join(line for package in PACKAGES for line in _of_package(importlib.import_module(package))) + "\n"


def _of_package(package: types.ModuleType) -> Iterator[str]:
    for name in sorted(set(package.__all__) - {"__version__"}):
        value = getattr(package, name)
        if package is not resume_core and value is getattr(resume_core, name, None):
            yield f"{package.__name__}.{name} = resume_core.{name}"
        else:
            yield from _described(f"{package.__name__}.{name}", value)


def _described(name: str, value: Any) -> Iterator[str]:
    yield name + _signature(value)
    if isinstance(value, type):
        for member in sorted(_members(value)):
            found = inspect.getattr_static(value, member)
            if isinstance(found, types.FunctionType):
                yield f"{name}.{member}{_signature(found)}"
            else:
                yield f"{name}.{member}"


def _members(cls: type) -> set[str]:
    """Its own: a hook that a framework's class has as well is called by the framework, not by users."""
    ours = [base for base in cls.__mro__ if base.__module__.partition(".")[0] in PACKAGES]
    theirs = {name for base in cls.__mro__ if base not in ours for name in vars(base)}
    own = {name for base in ours for name in vars(base)}
    annotated = {name for base in ours for name in getattr(base, "__annotations__", {})}
    return {name for name in own | annotated if not name.startswith("_") and hasattr(cls, name)} - theirs


def _signature(value: Any) -> str:
    try:
        found = inspect.signature(value)
    except (TypeError, ValueError):
        return ""
    plain = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in found.parameters.values()]
    return str(found.replace(parameters=plain, return_annotation=inspect.Signature.empty))


def test_what_is_exported_is_what_was_frozen():
    said = f"the public names have changed; if that is meant, run `python {Path(__file__).name}` and tell CHANGELOG.md"
    assert public_api() == FROZEN.read_text(), said


if __name__ == "__main__":
    FROZEN.write_text(public_api())
