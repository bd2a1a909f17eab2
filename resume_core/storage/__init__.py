"""Bytes on storage: stores, the commit of a checkpoint, lineage and retention. Knows no tensors."""

from resume_core.storage.attempt import Attempt
from resume_core.storage.brief import Brief
from resume_core.storage.commit import CheckpointSlots, CheckpointWriter, Slot
from resume_core.storage.digest import ALGORITHM, CHUNK_BYTES, digest_chunks
from resume_core.storage.evidence import put_check, put_evidence, read_check, read_evidence
from resume_core.storage.family import relatives
from resume_core.storage.histories import PastAttempt, put_history, read_history
from resume_core.storage.lineage import Lineage
from resume_core.storage.local import LocalStore
from resume_core.storage.manifest import CheckpointRef, FileRecord, Manifest, Part
from resume_core.storage.manifests import read_manifest
from resume_core.storage.paths import rank_file
from resume_core.storage.promotion import copy_share
from resume_core.storage.read import FileReader, digest_buffer, digest_file, read_file, verify
from resume_core.storage.retention import Pruned, clean, prune
from resume_core.storage.sealed import FORMAT_VERSION, Fields, seal, unseal
from resume_core.storage.store import Sink, Store, absolute, open_store
from resume_core.storage.tiers import Tiers
from resume_core.storage.usable import refuse_unusable

__all__ = [
    "ALGORITHM",
    "CHUNK_BYTES",
    "FORMAT_VERSION",
    "Attempt",
    "Brief",
    "CheckpointRef",
    "CheckpointSlots",
    "CheckpointWriter",
    "Fields",
    "FileReader",
    "FileRecord",
    "Lineage",
    "LocalStore",
    "Manifest",
    "Part",
    "PastAttempt",
    "Pruned",
    "Sink",
    "Slot",
    "Store",
    "Tiers",
    "absolute",
    "clean",
    "copy_share",
    "digest_chunks",
    "digest_buffer",
    "digest_file",
    "open_store",
    "prune",
    "put_check",
    "put_evidence",
    "put_history",
    "rank_file",
    "read_check",
    "read_evidence",
    "read_file",
    "read_history",
    "read_manifest",
    "refuse_unusable",
    "relatives",
    "seal",
    "unseal",
    "verify",
]
