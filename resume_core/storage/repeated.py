"""A part that is the same text in most files of one kind, as the configuration of a run is in its manifests.

It is parsed once, and then told by its bytes. In place of it an empty object is parsed, which says as much of the text
around it: where one whole object stands, another may, and nowhere else. A text that only looks like the beginning of
such a member would stand inside a string, and that would hold a bare line break, which strict JSON does not have.
"""

from __future__ import annotations

from collections.abc import Callable

from resume_core.errors import CorruptCheckpointError

__all__ = ["Repeated"]


class Repeated:
    """One member of an object in a file that our writer has indented. May be used by several threads.

    Args:
        name: of the member.
        depth: of the object that it is in, 1 for the file's own.
        parse: raises ``CorruptCheckpointError`` for what is no strict JSON.
    """

    def __init__(self, name: str, depth: int, parse: Callable[[bytes], object]) -> None:
        indent = "\n" + " " * depth
        self._begin, self._end, self._parse = f'{indent}"{name}": '.encode(), f"{indent}}}".encode(), parse
        self._known = b""  # the whole object, which was parsed

    def without(self, data: bytes) -> bytes:
        """The file with an empty object in the place of the member; as it is where there is none that is understood."""
        begin = data.find(self._begin) + len(self._begin)
        if begin < len(self._begin):
            return data
        known = self._known
        if not known or not data.startswith(known, begin):
            known = self._known = self._learn(data, begin)
        return b"%b{}%b" % (data[:begin], data[begin + len(known) :]) if known else data

    def _learn(self, data: bytes, begin: int) -> bytes:
        text = data[begin : data.find(self._end, begin) + len(self._end)]
        try:
            return text if isinstance(self._parse(text), dict) else b""
        except CorruptCheckpointError:
            return b""
