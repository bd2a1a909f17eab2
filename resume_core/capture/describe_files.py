"""The files of a dataset as facts: their names relative to what they have in common, and the sizes of some.

A folder may be renamed, copied to another disk or mounted elsewhere, and times of files say nothing, so neither counts.
Looking takes two seconds at most for a loader, whatever the disk does. A look that was not through gives no value, as
information, which is never compared: what a disk was fast enough for must not decide whether a run goes on. For the
same reason nothing is chosen by the order in which a disk tells it: samples are chosen by hashes of names.
"""

from __future__ import annotations

import errno
import heapq
import os
import stat
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import xxhash

from resume_core.capture.plain import words
from resume_core.state import Fact

__all__ = ["Patience", "describe_files"]

_T = TypeVar("_T")
_MAX_S = 2.0
_MAX_NAMES = 1 << 18  # of a list; of a longer one evenly spaced names are taken
_MAX_SIZES = 64
_MAX_FOLDERS = 256  # listed below a root
_MAX_BRANCHES = 16  # of one folder, that are listed
_MAX_PLACES = 8
_LEADS_NOWHERE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)  # of a link, as any other file a fact; not an outage
_NUM_THREADS = 8  # most of the time of a remote disk is waiting

_FOLDER_WORDS = {"root", "dir", "directory", "folder", "path", "base"}
_NOT_DATA = {"log", "logs", "cache", "tmp", "temp", "out", "output", "outputs", "save", "ckpt", "checkpoint", "run"}
_NOT_DATA |= {"runs", "work", "results", "project", "repo", "home", "script", "code", "stats"}
_WRITTEN = (".cache", ".lock", ".tmp", ".part", ".log", ".swp", ".pyc", "~")
_WRITTEN_FOLDERS = {"__pycache__", "lightning_logs", "wandb", "mlruns", "runs", "logs", "checkpoints", "outputs"}


class Patience:
    """What is left of the two seconds."""

    def __init__(self) -> None:
        self._end_s = time.monotonic() + _MAX_S

    @property
    def left_s(self) -> float:
        """Seconds, 0 when it is over."""
        return max(0.0, self._end_s - time.monotonic())

    def check(self) -> None:
        """Raises:
        TimeoutError: it is over.
        """
        if not self.left_s:
            raise TimeoutError

    def all_of(self, looks: Iterable[Callable[[], _T]]) -> list[_T] | None:
        """What each of ``looks`` gives, all at once; None where one failed or the time was over.

        A disk that does not answer holds up a thread of its own, which no interpreter waits for.
        """
        looks = list(looks)
        found: dict[int, _T] = {}

        def look(place: int) -> None:
            with suppress(Exception):  # a dataset's attributes are the user's own objects
                found[place] = looks[place]()

        threads = [threading.Thread(target=look, args=(place,), daemon=True) for place in range(len(looks))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(self.left_s)
        return [found[place] for place in range(len(looks))] if len(found) == len(looks) else None


def describe_files(dataset: object, place: str, patience: Patience) -> dict[str, Fact]:
    """Names as ``"data.0.dataset.files"``, sizes as ``"data.0.dataset.files.sizes"``.

    Args:
        dataset: its attributes are looked at: lists of paths (``samples`` of an ``ImageFolder``) and files; without
            any, its folder (``root``) is listed. No sample is read.
        place: of the dataset.
        patience: for all datasets of a loader.
    """
    looked = patience.all_of([lambda: _names(dataset, patience)])
    found = looked[0] if looked else None
    sizes = None if found is None else _sizes(found[1], patience)
    return {f"{place}.files": _fact(found and found[0]), f"{place}.files.sizes": _fact(sizes)}


def _fact(value: str | None) -> Fact:
    return Fact(None, "info") if value is None else Fact(value)


def _names(dataset: object, patience: Patience) -> tuple[str, list[tuple[str, str]]] | None:
    """A digest of the names, and some files as (relative name, path)."""
    own = getattr(dataset, "__dict__", {})
    lists = list(_path_lists(own))
    files = [os.fspath(value) for name, value in _paths(own) if _is_data(name) and os.path.isfile(value)]
    lists += [files[:_MAX_PLACES]] if files else []
    if lists:
        return _of_lists(lists, patience)
    roots = [root for root in _roots(dataset, own) if os.path.isdir(root) and not _holds_more(root)]
    return _of_roots(roots[:_MAX_PLACES], patience) if roots else None


def _is_data(name: str) -> bool:
    return _NOT_DATA.isdisjoint(words(name))


def _paths(own: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in own.items():
        if isinstance(value, (str, os.PathLike)) and "\n" not in str(value) and 0 < len(str(value)) < 4096:
            yield name, value


# ---- lists of paths


def _path_lists(own: dict[str, Any]) -> Iterator[list[str]]:
    """The attributes that are lists of paths, or of tuples that begin with one, as a sample of a folder does."""
    root = next((os.fspath(value) for name, value in _paths(own) if name == "root"), "")
    seen: list[Any] = []
    for name, value in own.items():
        is_list = isinstance(value, (list, tuple)) or getattr(getattr(value, "dtype", None), "kind", "") in ("U", "O")
        if not is_list or not len(value) or not _is_data(name) or any(value is other for other in seen):
            continue
        probes = [_path_of(value[at]) for at in {0, len(value) // 2, len(value) - 1}]
        if all(probes) and any(os.path.isfile(os.path.join(root, probe)) for probe in probes):
            seen.append(value)
            items = value[:: max(1, -(-len(value) // _MAX_NAMES))]
            yield [os.path.join(root, _path_of(item)) for item in items]


def _path_of(item: Any) -> str:
    first = item[0] if isinstance(item, (tuple, list)) and item else item
    if not isinstance(first, (str, os.PathLike)):
        return ""
    path = os.fspath(first)
    return path if isinstance(path, str) and len(path) < 4096 and "\n" not in path else ""


def _of_lists(lists: list[list[str]], patience: Patience) -> tuple[str, list[tuple[str, str]]]:
    digest, sample = xxhash.xxh3_64(), []
    for paths in lists[:_MAX_PLACES]:
        patience.check()
        start = _common_folder(min(paths), max(paths))
        digest.update("\n".join([path[start:] for path in paths]).encode("utf-8", "surrogateescape") + b"\0")
        spaced = paths[:: max(1, len(paths) >> 16)]
        sample += _chosen((path[start:], path) for path in spaced)
    return f"{sum(map(len, lists)):,} files, xxh3 {digest.hexdigest()}", _chosen(sample)


def _common_folder(first: str, last: str) -> int:
    """How many characters the folder has that holds both, and all that are sorted between them."""
    same = next((at for at, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))
    return first.rfind(os.sep, 0, same) + 1


def _chosen(files: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    return heapq.nsmallest(_MAX_SIZES, files, key=lambda file: (_hash(file[0]), file[0]))


def _hash(name: str) -> int:
    return int(xxhash.xxh3_64_intdigest(name.encode("utf-8", "surrogateescape")))


# ---- a folder


def _roots(dataset: object, own: dict[str, Any]) -> list[str]:
    # a class of torchvision says in which part of its root its data lies; another one's properties may do anything
    if type(dataset).__module__.partition(".")[0] == "torchvision":
        raw, base = getattr(dataset, "raw_folder", None), getattr(dataset, "base_folder", "")
        return [str(raw or os.path.join(own.get("root", ""), str(base)))]
    named = [
        (name, value) for name, value in _paths(own) if _is_data(name) and not _FOLDER_WORDS.isdisjoint(words(name))
    ]
    return [os.fspath(value) for _, value in named]


def _holds_more(root: str) -> bool:
    """Whether a folder holds what a run, or this machine, writes as well."""
    places = [Path.cwd(), Path.home(), Path(sys.argv[0] if sys.argv else ".").parent, Path(tempfile.gettempdir())]
    resolved = Path(root).resolve()
    return any(place.resolve().is_relative_to(resolved) for place in places)


def _of_roots(roots: list[str], patience: Patience) -> tuple[str, list[tuple[str, str]]]:
    digest, files, count = xxhash.xxh3_64(), [], 0
    for root in roots:
        for folder, names in _listed(root, patience):
            count += sum(not name.endswith(os.sep) for name in names)
            digest.update("\n".join([f"{folder}{os.sep}", *names, ""]).encode("utf-8", "surrogateescape"))
            inner = [os.path.join(folder, name) for name in names if not name.endswith(os.sep)]
            files += _chosen((name, os.path.join(root, name)) for name in inner)
    return f"{count:,} files seen, xxh3 {digest.hexdigest()}", _chosen(files)


def _listed(root: str, patience: Patience) -> Iterator[tuple[str, list[str]]]:
    """Folders below ``root`` and what is in them, sorted; a folder's name ends with a separator."""
    waiting, known = [""], set[tuple[int, int]]()
    for _ in range(_MAX_FOLDERS):
        if not waiting:
            return
        folder = waiting.pop(0)
        patience.check()
        status = os.stat(os.path.join(root, folder))
        if (status.st_dev, status.st_ino) in known:  # a link to what was listed: above it, as like as not
            continue
        known.add((status.st_dev, status.st_ino))
        names = sorted(_entries(os.path.join(root, folder), patience))
        inner = [os.path.join(folder, name[:-1]) for name in names if name.endswith(os.sep)]
        waiting += heapq.nsmallest(_MAX_BRANCHES, inner, key=_hash)
        yield folder, names


def _entries(folder: str, patience: Patience) -> Iterator[str]:
    with os.scandir(folder) as entries:
        for number, entry in enumerate(entries):
            if number % 1024 == 0:
                patience.check()
            is_folder = _is_folder(entry)
            if not _is_written(entry.name, is_folder=is_folder):
                yield entry.name + os.sep * is_folder


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError as error:
        if error.errno not in _LEADS_NOWHERE:
            raise
        return False


def _is_written(name: str, *, is_folder: bool) -> bool:
    """Whether something that uses data leaves this beside it."""
    if is_folder and (name in _WRITTEN_FOLDERS or name.startswith("attempt-")):
        return True
    return name.startswith(".") or name.endswith(_WRITTEN)


# ---- sizes


def _sizes(files: list[tuple[str, str]], patience: Patience) -> str | None:
    shares = [files[at::_NUM_THREADS] for at in range(_NUM_THREADS)]
    looked = patience.all_of([lambda share=share: _measured(share, patience) for share in shares if share])  # type: ignore[misc]
    if looked is None:
        return None
    found = sorted(pair for share in looked for pair in share)
    digest = xxhash.xxh3_64_hexdigest(
        "\n".join(f"{name}\t{size}" for name, size in found).encode("utf-8", "surrogateescape")
    )
    return f"{sum(size for _, size in found):,} bytes in {len(found)}, xxh3 {digest}"


def _measured(files: list[tuple[str, str]], patience: Patience) -> list[tuple[str, int]]:
    found = []
    for name, path in files:
        patience.check()
        found.append((name, _size_bytes(path)))
    return found


def _size_bytes(path: str) -> int:
    try:
        status = os.stat(path)
    except OSError as error:
        if error.errno not in _LEADS_NOWHERE:
            raise
        return 0
    return status.st_size if stat.S_ISREG(status.st_mode) else 0
