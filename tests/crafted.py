"""Checkpoints made by hand: content that no writer of ours produces, under digests that are right."""

from __future__ import annotations

import dataclasses
import json
import struct
from pathlib import Path
from typing import Any

from resume_core.storage import FileRecord, Manifest, digest_chunks
from resume_core.storage.digest import digest
from resume_core.storage.sealed import seal


def fields(path: Path) -> dict[str, Any]:
    """What a sealed file says."""
    found = json.loads(path.read_text())
    return {name: value for name, value in found.items() if name not in ("format", "kind", "digest")}


def reseal(path: Path, text: str) -> None:
    """Any text of an object, sealed as it stands: not even JSON is asked for."""
    body = text.rstrip().removesuffix("}").rstrip().encode("utf-8", "surrogatepass")
    path.write_bytes(body + f',\n "digest": "xxh3_128:{digest(body)}"\n}}\n'.encode())


def change(path: Path, kind: str, **changes: Any) -> None:
    """A sealed file that says something else."""
    path.write_bytes(seal(kind, fields(path) | changes))


def replace(folder: Path, name: str, data: bytes) -> None:
    """Another content of one file of a checkpoint, with a manifest that vouches for it."""
    path = folder / "manifest.json"
    manifest = Manifest.from_bytes(path.read_bytes(), path=str(path))
    chunk_bytes = manifest.file(name).chunk_bytes
    record = FileRecord(name, len(data), chunk_bytes, digest_chunks(data, chunk_bytes))
    files = tuple(record if old.name == name else old for old in manifest.files)
    (folder / name).write_bytes(data)
    path.write_bytes(dataclasses.replace(manifest, files=files).to_bytes())


def safetensors(header: Any, data: bytes = b"", *, size: int | None = None) -> bytes:
    """A file of that format; ``header`` as an object or as text, ``size`` what it says the header has."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if size is None else size) + text + data


def tree(folder: Path) -> dict[str, bytes]:
    """Everything below a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
