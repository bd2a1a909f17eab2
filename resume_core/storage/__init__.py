"""Bytes on storage: stores, the commit of a checkpoint, lineage and retention. Knows no tensors."""

from resume_core.storage.commit import CheckpointSlots, CheckpointWriter, Slot
from resume_core.storage.digest import ALGORITHM, CHUNK_BYTES, digest_chunks
from resume_core.storage.lineage import Attempt, Lineage
from resume_core.storage.manifest import CheckpointRef, FileRecord, Manifest, Part
from resume_core.storage.paths import rank_file
from resume_core.storage.read import FileReader, digest_file, read_file, read_file_into, read_manifest, verify
from resume_core.storage.retention import Pruned, prune
from resume_core.storage.sealed import FORMAT_VERSION
from resume_core.storage.store import Sink, Store, open_store

__all__ = [
    "ALGORITHM",
    "CHUNK_BYTES",
    "FORMAT_VERSION",
    "Attempt",
    "CheckpointRef",
    "CheckpointSlots",
    "CheckpointWriter",
    "FileReader",
    "FileRecord",
    "Lineage",
    "Manifest",
    "Part",
    "Pruned",
    "Sink",
    "Slot",
    "Store",
    "digest_chunks",
    "digest_file",
    "open_store",
    "prune",
    "rank_file",
    "read_file",
    "read_file_into",
    "read_manifest",
    "verify",
]
