"""What a manifest says that lists and retention go by: thousands of them fit into memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from resume_core.storage.manifest import CheckpointRef, Manifest
from resume_core.storage.repeated import Repeated
from resume_core.storage.sealed import JsonMapping, parse

__all__ = ["Brief"]

_LEFT_OUT = frozenset({"config", "provenance", "preamble", "evidence"})  # nearly all of a header
_DEPTH = 2  # of the object that the configuration is in
# nearly all of a header, and the same all along a run
_CONFIG = Repeated("config", _DEPTH, partial(parse, path="config", depth=_DEPTH))


@dataclass(frozen=True)
class Brief:
    """A manifest without what only a restore asks for: the configuration, the digests of the files.

    Attributes:
        ref: of the checkpoint, with its serial.
        header: that of the manifest without its large fields: where, why and when it was saved, metrics, the fit that
            it belongs to.
        sizes: in bytes, of each file.
    """

    ref: CheckpointRef
    header: JsonMapping
    sizes: Mapping[str, int]

    @property
    def size_bytes(self) -> int:
        """Of all files."""
        return sum(self.sizes.values())

    @property
    def num_metrics(self) -> int:
        """How many values were logged."""
        metrics = self.header.get("metrics")
        return len(metrics) if isinstance(metrics, dict) else 0

    @classmethod
    def of(cls, manifest: Manifest) -> Brief:
        """That of a manifest which was read in full."""
        header = {name: value for name, value in manifest.header.items() if name not in _LEFT_OUT}
        return cls(manifest.ref, header, {record.name: record.size_bytes for record in manifest.files})

    @classmethod
    def from_bytes(cls, data: bytes, *, path: str, kind: str = "manifest") -> Brief:
        """Read a manifest; everything in it is checked. Arguments as for `Manifest.from_bytes`.

        Raises:
            CorruptCheckpointError: it was altered, is of a newer format, or says something impossible.
        """
        return cls.of(Manifest.from_bytes(data, path=path, kind=kind, without=_CONFIG))
