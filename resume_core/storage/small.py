"""Small files and folders of a run: what the disk has lost of them is told as damage."""

from __future__ import annotations

from resume_core.errors import CorruptCheckpointError
from resume_core.storage.interface import Names, Store

__all__ = ["is_there", "list_folder", "loss_is_damage", "read_small"]


def read_small(store: Store, key: str) -> bytes:
    """All bytes of a small file.

    Raises:
        FileNotFoundError: there is no such file.
        CorruptCheckpointError: its bytes are lost, or far too many.
        OSError: the store cannot be read.
    """
    with loss_is_damage(store, key, "read"):
        return store.read(key)


def list_folder(store: Store, folder: str) -> Names:
    """Sorted names of what is directly in a folder of the run; [] if it is not there.

    Raises:
        CorruptCheckpointError: what is in it is lost.
        OSError: the store cannot be read.
    """
    with loss_is_damage(store, folder, "listed"):
        return store.list(folder)


class loss_is_damage:
    """Tell an error that says that bytes are lost as damage of what lies there.

    Args:
        store: that is read.
        key: the file or folder.
        what: is done to it, as in "read".

    Raises:
        CorruptCheckpointError: in place of such an error.
    """

    def __init__(self, store: Store, key: str, what: str) -> None:
        self._store, self._key, self._what = store, key, what

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError) and self._store.is_lost(error):
            path = self._store.locate(self._key)
            raise CorruptCheckpointError(f"{path} cannot be {self._what} any more: {error}.", path=path) from error


def is_there(store: Store, key: str) -> bool:
    """Whether there is a file of that name; one that is lost is there, and whoever reads it learns what is wrong.

    Raises:
        OSError: the store cannot be read.
    """
    try:
        return store.exists(key)
    except OSError as error:
        if not store.is_lost(error):
            raise
        return True
