"""The weights alone, as a plain safetensors file: a copy of the checkpoint's own, chunk by chunk, each checked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from resume_core.carried import CARRIED
from resume_core.storage import FileReader
from resume_core.storage.digest import iter_chunks

__all__ = ["copy_weights", "notes_on_weights"]


def copy_weights(reader: FileReader, out: Path) -> None:
    """Write what ``reader`` reads.

    Raises:
        CorruptCheckpointError: no store has a chunk as it was saved.
        OSError: a store cannot be read, or ``out`` not be written.
    """
    buffer = memoryview(bytearray(min(reader.chunk_bytes, reader.size_bytes)))
    with out.open("xb") as file:
        for number, (_, length_bytes) in enumerate(iter_chunks(reader.size_bytes, reader.chunk_bytes)):
            reader.read_chunk(number, [buffer[:length_bytes]])
            file.write(buffer[:length_bytes])


def notes_on_weights(structure: Mapping[str, Any] | None) -> list[str]:
    """What readers of the file must know, one sentence each.

    Args:
        structure: of the checkpoint, None when only its weights are left.
    """
    carried = sorted(_carried((structure or {}).get("model", {})))
    return [
        f"safetensors has no {dtype}: {name} is there as {carrier}, {times} numbers for one"
        for name, dtype, carrier, times in carried
    ]


def _carried(node: Any) -> Iterator[tuple[str, str, str, int]]:
    if isinstance(node, list):
        for child in node:
            yield from _carried(child)
    elif isinstance(node, dict):
        dtype = node.get("dtype") if node.get("$") in ("tensor", "parameter") else None
        if isinstance(dtype, str) and dtype in CARRIED:
            yield node["name"], dtype, CARRIED[dtype].carrier, CARRIED[dtype].num_carriers
        for child in node.values():
            yield from _carried(child)
