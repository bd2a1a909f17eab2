"""What the header of a manifest says about its run.

The seal of a manifest says that nothing was altered by accident, not who wrote it. So every field is checked for what
a session writes there, and anything else is damage, found before it can steer anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from resume_core.capture.runconfig import from_json
from resume_core.ends import fit_of, is_count, unclear
from resume_core.errors import CheckpointNotFoundError, CorruptCheckpointError
from resume_core.origin import ORIGIN, Origin
from resume_core.state import Progress, RunConfig
from resume_core.storage import CheckpointRef, Lineage, Manifest

__all__ = ["TOLD", "Header", "fit_of", "header_of", "origin_of", "read_key", "read_origin", "read_preamble"]

TOLD = ("progress", "time", "trained_s")
"""Fields that say how far an attempt had come, and when: the claim of one that goes on from it has them too."""


@dataclass(frozen=True)
class Header:
    """The fields that decide how a run goes on.

    Attributes:
        progress: where the checkpoint was taken.
        key: the run's root of all data randomness.
        config: of the run.
        finished: how training had ended, None for a checkpoint from before its end.
        origin: what the run had started from, None when it began anew.
        evidence: what it knew of the batch behind it; of no use for restoring, and empty when it is not understood.
    """

    progress: Progress
    key: int
    config: RunConfig
    finished: Mapping[str, Any] | None
    origin: Origin | None
    evidence: Mapping[str, Any]


def header_of(manifest: Manifest) -> Header:
    """The header of a checkpoint.

    Raises:
        CorruptCheckpointError: a field is missing, or holds what no session writes.
    """
    try:
        progress, key = _progress(manifest.header["progress"]), manifest.header["key"]
        if type(key) is not int or not 0 <= key < 2**64:
            raise ValueError(f"the key {key!r:.80}")
        config = from_json(manifest.header["config"])
    except (KeyError, TypeError, ValueError, CorruptCheckpointError) as error:
        raise unclear(manifest, error) from error
    evidence = manifest.header.get("evidence")
    known = evidence if isinstance(evidence, Mapping) else {}
    return Header(progress, key, config, fit_of(manifest)[1], origin_of(manifest), known)


def origin_of(manifest: Manifest) -> Origin | None:
    """What the run of a checkpoint had started from, None when it began anew.

    Raises:
        CorruptCheckpointError: as for `header_of`.
    """
    try:
        return Origin.from_dict(manifest.header.get(ORIGIN))
    except (KeyError, TypeError) as error:
        raise unclear(manifest, error) from error


def read_key(lineage: Lineage, ref: CheckpointRef) -> int | None:
    """The key of the run that wrote a checkpoint, None when its manifest cannot be used."""
    try:
        return header_of(lineage.read_manifest(ref)).key
    except (CorruptCheckpointError, CheckpointNotFoundError):
        return None


def read_preamble(lineage: Lineage, ref: CheckpointRef) -> Mapping[str, Any] | None:
    """What a checkpoint tells the framework before it is read, None when its manifest cannot be used."""
    try:
        return dict(lineage.read_manifest(ref).header.get("preamble", {}))
    except (CorruptCheckpointError, CheckpointNotFoundError, TypeError, ValueError):
        return None


def read_origin(lineage: Lineage, ref: CheckpointRef) -> Origin | None:
    """What the run that wrote a checkpoint had started from, None for a run that began anew.

    Raises:
        CorruptCheckpointError: the manifest cannot be used.
        CheckpointNotFoundError: it is gone.
    """
    return origin_of(lineage.read_manifest(ref))


def _progress(saved: Mapping[str, Any]) -> Progress:
    progress = Progress(**saved)
    for field in fields(Progress):
        value = getattr(progress, field.name)
        if not (type(value) is bool if type(field.default) is bool else is_count(value)):
            raise ValueError(f"the progress {field.name}={value!r:.80}")
    return progress
