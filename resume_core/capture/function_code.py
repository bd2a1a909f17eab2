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

__all__ = ["codes_of", "function_of", "function_source", "is_of_library"]

_MAX_CHARACTERS = 4000
_SPACES = frozenset({tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT})


def is_of_library(value: Any) -> bool:
    """Whether a function comes with Python or with a package: its name, with the version, is what it computes."""
    function = function_of(value)
    return function is None or is_installed(function.__code__.co_filename)


def function_source(value: Any) -> str | None:
    """What a function computes, or what a partial or a callable object calls.

    Returns:
        None for what has no Python source, or whose source is that of a library: that has a version.
    """
    function = function_of(value)
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


def function_of(value: Any) -> types.FunctionType | None:
    """The function itself, or what a partial, a method or a callable object calls; None where that is not Python."""
    if isinstance(value, functools.partial):
        return function_of(value.func)
    if isinstance(value, types.MethodType):
        return function_of(value.__func__)
    if isinstance(value, types.FunctionType):
        return value
    call = None if isinstance(value, type) else getattr(type(value), "__call__", None)  # noqa: B004
    return call if isinstance(call, types.FunctionType) else None


def codes_of(code: types.CodeType) -> Iterator[types.CodeType]:
    """The code of a function, and those of the functions in it."""
    yield code
    for item in code.co_consts:
        if isinstance(item, types.CodeType):
            yield from codes_of(item)


def _places(code: types.CodeType) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    """Line and column where each expression of a function begins and ends; nothing before Python 3.11."""
    for each in codes_of(code):
        for first, last, start, end in getattr(each, "co_positions", tuple)():
            # what has no width is Python's own: the start of a function
            if first and last and start is not None and end is not None and (first, start) != (last, end):
                yield (first, start), (last, end)


def _tokens(text: str) -> Iterator[str]:
    with suppress(tokenize.TokenError, SyntaxError):  # it may end within a bracket
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type not in _SPACES and token.string:
                yield token.string
