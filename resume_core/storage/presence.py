"""Whether the files of a checkpoint are there in their sizes: what can be told without reading them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from resume_core.storage.interface import Store
from resume_core.storage.manifest import CheckpointRef
from resume_core.storage.paths import join_key

__all__ = ["flaws"]


def flaws(store: Store, ref: CheckpointRef, sizes: Mapping[str, int]) -> Iterator[str]:
    """A few words on each file that is not there as it was saved.

    Args:
        store: the tier.
        ref: the checkpoint.
        sizes: bytes of each file, as its manifest says.

    Raises:
        OSError: the store cannot be read.
    """
    for name, expected in sizes.items():
        key = join_key(ref.path, name)
        try:
            size_bytes = store.size(key)
        except FileNotFoundError:
            yield f"{store.locate(key)} is missing"
        else:
            if size_bytes != expected:
                yield f"{store.locate(key)} has {size_bytes} bytes, saved were {expected}"
