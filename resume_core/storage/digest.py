"""The digest of a file: xxh3_128 of each chunk.

A digest per chunk lets the writer hash while it writes, lets a reader check while it reads, and names the chunk that
was altered. xxh3_128 finds accidents (bit rot, torn and mixed-up files) at memory speed; it is no signature against
somebody who forges files on purpose.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from threading import Thread

import xxhash

__all__ = [
    "ALGORITHM",
    "CHUNK_BYTES",
    "BytesLike",
    "Digesting",
    "byte_view",
    "digest",
    "digest_all",
    "digest_chunks",
    "digest_of",
    "iter_chunks",
    "num_chunks",
]

ALGORITHM = "xxh3_128"
"""Name of the digest, as manifests give it."""

CHUNK_BYTES = 16 * 1024 * 1024
"""Bytes covered by one digest and moved by one write; the last chunk of a file may be shorter."""

BytesLike = bytes | bytearray | memoryview

_DIGEST = re.compile(r"[0-9a-f]{32}", re.ASCII)


def byte_view(buffer: BytesLike) -> memoryview:
    """A flat view of unsigned bytes on ``buffer``, without a copy.

    Raises:
        TypeError: the buffer is not contiguous.
    """
    view = memoryview(buffer)
    # An empty view cannot be cast when its shape holds a zero, and there is nothing to share.
    return view.cast("B") if view.nbytes else memoryview(bytearray())


def digest(data: BytesLike) -> str:
    """xxh3_128 of ``data``: 32 lower-case hexadecimal digits."""
    return str(xxhash.xxh3_128_hexdigest(data))


def digest_of(views: Iterable[memoryview]) -> str:
    """`digest` of the bytes of ``views``, one after the other, without joining them."""
    state = xxhash.xxh3_128()
    for view in views:
        state.update(view)
    return str(state.hexdigest())


def is_digest(text: str) -> bool:
    """Whether ``text`` has the form of a digest."""
    return _DIGEST.fullmatch(text) is not None


def num_chunks(size_bytes: int, chunk_bytes: int = CHUNK_BYTES) -> int:
    """How many chunks a file of ``size_bytes`` has; none when it is empty."""
    return -(-size_bytes // chunk_bytes)


def iter_chunks(size_bytes: int, chunk_bytes: int = CHUNK_BYTES) -> Iterator[tuple[int, int]]:
    """Offset and length in bytes of each chunk of a file, in order."""
    for offset_bytes in range(0, size_bytes, chunk_bytes):
        yield offset_bytes, min(chunk_bytes, size_bytes - offset_bytes)


def digest_chunks(view: BytesLike, chunk_bytes: int = CHUNK_BYTES) -> tuple[str, ...]:
    """The digest of each chunk of ``view``, in order; empty for an empty view.

    Raises:
        TypeError: the buffer is not contiguous.
    """
    flat = byte_view(view)
    return tuple(digest(flat[at : at + length]) for at, length in iter_chunks(flat.nbytes, chunk_bytes))


def digest_all(digests: Iterable[str]) -> str:
    """One digest over those of all chunks of a file, in order."""
    return digest("".join(digests).encode("ascii"))


class Digesting:
    """Takes the digests of a file's chunks in a thread of its own, beside the ``with`` block that writes the file.

    Where memory is not in the processor's cache, reading it for the digest takes a third of the time that the disk
    takes for it; one after the other would be the sum. The thread inherits the priority of the one that starts it.

    Args:
        view: the whole file, flat, which stays as it is once ``ready`` has returned.
        chunk_bytes: bytes covered by each digest.
        ready: returns when digests may be taken; an error of it ends the thread, and is to be met by the writing too.
    """

    def __init__(self, view: memoryview, chunk_bytes: int, ready: Callable[[], object] = lambda: None) -> None:
        self._view, self._chunk_bytes, self._ready = view, chunk_bytes, ready
        self._num_chunks = num_chunks(view.nbytes, chunk_bytes)
        self._digests: list[str] = []
        self._is_over = False
        # no executor: those take nothing any more when the interpreter waits for the last save at its exit
        self._thread = Thread(target=self._take, name="exact-resume-digest") if self._num_chunks > 1 else None

    def __enter__(self) -> Digesting:
        if self._thread is not None:
            self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._is_over = error[0] is not None
        if self._thread is not None:
            self._thread.join()

    def _take(self) -> None:
        try:
            self._ready()
        except RuntimeError:
            return
        for at, length in iter_chunks(self._view.nbytes, self._chunk_bytes):
            if self._is_over:
                return
            self._digests.append(digest(self._view[at : at + length]))

    def result(self) -> tuple[str, ...]:
        """One digest for each chunk, in order; after the block."""
        if len(self._digests) != self._num_chunks:  # a single chunk, or the thread could not
            return digest_chunks(self._view, self._chunk_bytes)
        return tuple(self._digests)
