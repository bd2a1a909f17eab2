"""The settings that a small function of the user's own reads where they lie: globals, and attributes of objects.

Nothing of the user's is called: names come from the byte code, attributes from where they are stored. What a property
or ``__getattr__`` would give is not known, and neither is what a function reads through an item (``cfg["rate"]``, but
for a dict that is a setting itself) or in another function that it calls.
"""

from __future__ import annotations

import dis
import functools
import inspect
import types
from collections.abc import Iterator
from typing import Any

from resume_core.capture.function_code import codes_of, function_of, is_of_library
from resume_core.capture.installed import is_installed
from resume_core.capture.plain import is_setting, plain

__all__ = ["function_reads"]

_GLOBAL = frozenset({"LOAD_GLOBAL", "LOAD_NAME"})
_CLOSED_OVER = frozenset({"LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF"})
_ATTRIBUTE = frozenset({"LOAD_ATTR", "LOAD_METHOD"})
_MISSING = object()


def function_reads(value: Any) -> dict[str, Any]:
    """Plain numbers and strings by the name that the function has for them: ``RATE``, ``args.warmup``, ``self.total``.

    Args:
        value: a function, a method, a partial or a callable object.
    """
    function = function_of(value)
    if function is None or is_of_library(value):
        return {}
    owner, found = _owner(value), dict[str, Any]()
    known = {} if owner is _MISSING or isinstance(value, types.MethodType) else getattr(owner, "__dict__", {})
    for base, (name, *attributes) in _chains(function.__code__):
        item, place = _look_up(function, owner, base, name), name
        for attribute in attributes:
            if item is _MISSING or is_setting(item):
                break  # an attribute of a number is none of the user's
            item, place = _stored(item, attribute), f"{place}.{attribute}"
        # what is closed over, or an attribute of a callable object, is known as a setting of the function already
        is_told = (base == "closure" and place == name) or (base == "self" and place[len(name) + 1 :] in known)
        if item is not _MISSING and is_setting(item) and not is_told and not name.startswith("__"):
            found[place] = plain(item)
    return dict(sorted(found.items()))


def _owner(value: Any) -> Any:
    """What a function knows as its first argument before it is called; nothing for a plain function."""
    if isinstance(value, functools.partial):
        return _owner(value.func)
    if isinstance(value, types.MethodType):
        return value.__self__
    return _MISSING if isinstance(value, types.FunctionType) else value


def _chains(code: types.CodeType) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Where a name is looked up, and the name with the attributes that are read behind it."""
    first = code.co_varnames[0] if code.co_argcount else None
    for each in codes_of(code):
        chain: list[str] = []
        base = ""
        for instruction in dis.get_instructions(each):
            if chain and instruction.opname in _ATTRIBUTE:
                chain.append(instruction.argval)
                continue
            if chain:
                yield base, tuple(chain)
            base, chain = _begun(instruction, first if each is code else None)
        if chain:
            yield base, tuple(chain)


def _begun(instruction: dis.Instruction, first: str | None) -> tuple[str, list[str]]:
    name = instruction.argval
    if instruction.opname in _GLOBAL:
        return "global", [name]
    if instruction.opname in _CLOSED_OVER:
        return "closure", [name]
    if instruction.opname.startswith("LOAD_FAST"):  # some of these load two, of which the last is on top
        name = name[-1] if isinstance(name, tuple) else name
        return ("self", [name]) if name == first else ("", [])
    return "", []


def _look_up(function: types.FunctionType, owner: Any, base: str, name: str) -> Any:
    if base == "global":
        return function.__globals__.get(name, _MISSING)
    if base == "self":
        return owner
    if name not in function.__code__.co_freevars:
        return _MISSING
    cell = (function.__closure__ or ())[function.__code__.co_freevars.index(name)]
    return _MISSING if cell == types.CellType() else cell.cell_contents


def _stored(owner: Any, name: str) -> Any:
    """An attribute that lies in the object or its class; no code of either runs."""
    if isinstance(owner, types.ModuleType):
        is_own = not is_installed(getattr(owner, "__file__", None) or "<frozen ")
        return vars(owner).get(name, _MISSING) if is_own else _MISSING
    found = inspect.getattr_static(owner, name, _MISSING)
    if isinstance(found, types.MemberDescriptorType) and not isinstance(owner, type):  # of __slots__
        try:
            return found.__get__(owner)
        except AttributeError:
            return _MISSING
    return _MISSING if _is_computed(found) else found


def _is_computed(found: Any) -> bool:
    return not is_setting(found) and hasattr(type(found), "__get__")
