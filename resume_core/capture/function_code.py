"""What a small function of the user's own does, as text that a run can be compared by.

Byte code differs from one Python to the next, and a line of a script holds more than one lambda. So it is the source
that is taken, of the function's own expressions alone (PEP 657 says where they lie), as tokens: comments, line breaks
and spaces decide nothing.
"""

from __future__ import annotations

import functools
import io
import linecache
import tokenize
import types
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from resume_core.capture.installed import is_installed
from resume_core.capture.plain import is_setting, plain

__all__ = ["function_globals", "function_source", "is_of_library"]

_MAX_CHARACTERS = 4000
_SPACES = frozenset({tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT})


def is_of_library(value: Any) -> bool:
    """Whether a function comes with Python or with a package: its name, with the version, is what it computes."""
    function = _function(value)
    return function is None or is_installed(function.__code__.co_filename)


def function_source(value: Any) -> str | None:
    """What a function computes, or what a partial or a callable object calls.

    Returns:
        None for what has no Python source, or whose source is that of a library: that has a version.
    """
    function = _function(value)
    if function is None or is_of_library(value):
        return None
    lines = linecache.getlines(function.__code__.co_filename, function.__globals__)
    places = list(_places(function.__code__)) if lines else []
    if not places:
        return None
    (first, start), (last, end) = min(place[0] for place in places), max(place[1] for place in places)
    cut = [line.encode() for line in lines[first - 1 : last]]  # columns count bytes
    if not cut:
        return None
    cut[-1] = cut[-1][:end]
    cut[0] = cut[0][start:]
    return " ".join(_tokens(b"".join(cut).decode(errors="replace")))[:_MAX_CHARACTERS]


def function_globals(value: Any) -> dict[str, Any]:
    """The numbers and strings of its module that such a function of the user's own reads, by name."""
    function = _function(value)
    if function is None or is_of_library(value):
        return {}
    names = {name for code in _codes(function.__code__) for name in code.co_names}
    found = {name: function.__globals__[name] for name in sorted(names) if name in function.__globals__}
    return {name: plain(item) for name, item in found.items() if is_setting(item) and not name.startswith("__")}


def _function(value: Any) -> types.FunctionType | None:
    if isinstance(value, functools.partial):
        return _function(value.func)
    if isinstance(value, types.MethodType):
        return _function(value.__func__)
    if isinstance(value, types.FunctionType):
        return value
    call = None if isinstance(value, type) else getattr(type(value), "__call__", None)  # noqa: B004
    return call if isinstance(call, types.FunctionType) else None


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """It, and those of the functions in it."""
    yield code
    for item in code.co_consts:
        if isinstance(item, types.CodeType):
            yield from _codes(item)


def _places(code: types.CodeType) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    """Line and column where each expression of a function begins and ends; nothing before Python 3.11."""
    for each in _codes(code):
        for first, last, start, end in getattr(each, "co_positions", tuple)():
            # what has no width is Python's own: the start of a function
            if first and last and start is not None and end is not None and (first, start) != (last, end):
                yield (first, start), (last, end)


def _tokens(text: str) -> Iterator[str]:
    with suppress(tokenize.TokenError, SyntaxError):  # it may end within a bracket
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type not in _SPACES and token.string:
                yield token.string
