"""What is in a place where somebody looks for a run and there is none, as a sentence."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice

from resume_core.nearest import nearest
from resume_core.storage import Store
from resume_core.storage.paths import ATTEMPT_FILE, parse_attempt_folder, parse_checkpoint_folder

__all__ = ["no_run"]

_MOST_LOOKED_AT, _MOST_NAMED = 200, 5


def no_run(store: Store) -> str:
    """Why a store is no directory of a run, and which one may have been meant.

    Raises:
        OSError: the store cannot be read.
    """
    url = store.url
    if "://" not in url and not os.path.lexists(url):
        return f"{url} does not exist" + _alike(url)
    if "://" not in url and os.path.isfile(url):
        return f"{url} is a file, and no directory of a run"
    parent, _, name = url.rstrip("/").rpartition("/")
    names = store.list("")
    if ATTEMPT_FILE in names:
        return f"{url} is an attempt of {parent}. Give the directory of the run"
    if parse_checkpoint_folder(name) is not None and names:
        return f"{url} is a checkpoint of {parent.rpartition('/')[0]}. Give the directory of the run"
    runs = list(islice(_runs(store, names), _MOST_NAMED + 1))
    if runs:
        more = " and more" if len(runs) > _MOST_NAMED else ""
        return f"{url} is no directory of a run; runs lie below it: {', '.join(runs[:_MOST_NAMED])}{more}"
    begun = [each for each in names if parse_attempt_folder(each) is not None]
    if begun and ATTEMPT_FILE not in store.list(begun[-1]):
        return f"{url} has no attempt: {begun[-1]} has no {ATTEMPT_FILE}, as a start leaves that is killed at once"
    return f"{url} is no directory of a run: there is no attempt in it"


def _alike(path: str) -> str:
    """A question that names the folder beside a missing one that is spelt most like it; empty without one."""
    parent, name = os.path.split(path)
    try:
        folders = [entry for entry in islice(os.scandir(parent), _MOST_LOOKED_AT) if entry.is_dir()]
    except OSError:
        return ""
    found = nearest(name, [entry.name for entry in folders if _has_run(entry.path, deeper=True)])
    return f". Did you mean {os.path.join(parent, found)}?" if found else ""


def _has_run(path: str, *, deeper: bool) -> bool:
    """Whether a folder holds an attempt, or one of those in it does."""
    with suppress(OSError), os.scandir(path) as entries:
        inside = list(islice(entries, _MOST_LOOKED_AT))
        if any(parse_attempt_folder(entry.name) is not None for entry in inside):
            return True
        return deeper and any(_has_run(entry.path, deeper=False) for entry in inside if entry.is_dir())
    return False


def _runs(store: Store, names: list[str]) -> Iterator[str]:
    """Folders of the first level that hold an attempt."""
    for name in islice(sorted(names), _MOST_LOOKED_AT):
        with suppress(OSError, ValueError):
            if any(parse_attempt_folder(inside) is not None for inside in store.list(name)):
                yield name
