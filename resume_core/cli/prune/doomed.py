"""What a prune of a run's directory deletes, found by the very rules that training prunes by.

It is safe beside a run that trains. What goes is what that run would delete itself, or what the user's own `Keep`
leaves out, and never its newest checkpoint that has all its files. A half-written folder of the newest attempt may be a
save in flight: it is left alone; so is what that attempt has moved aside, while it is heard of. And before each
deletion it is looked whether a newer attempt has started, which may stand on anything.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from datetime import datetime, timedelta, timezone
from typing import Any

from resume_core.directory import look_at
from resume_core.ends import finished_fit
from resume_core.errors import CheckpointNotFoundError, CorruptCheckpointError, ResumeError
from resume_core.heard import read_heard
from resume_core.history import PERIOD_S
from resume_core.no_run import no_run
from resume_core.policy import Keep
from resume_core.storage import Attempt, CheckpointRef, Lineage, Pruned
from resume_core.storage.keeping import Entry, judge, reasons, recorded_keep
from resume_core.storage.paths import MODEL_FILE, WEIGHTS_FILE, is_checkpoint_file, join_key
from resume_core.storage.presence import flaws
from resume_core.storage.retention import Outlook, Removal, kept_aside, off_line, outlook, remove, remove_aside

__all__ = ["Doomed", "Prune"]

_ASIDE = "to be written over by an attempt that was killed"
_IS_ALIVE = timedelta(seconds=3 * PERIOD_S)


@dataclass(frozen=True)
class Doomed:
    """What goes of one checkpoint folder, or a file that lies beside them.

    Attributes:
        path: below the run's directory.
        why: a few words.
        step: optimizer steps done there; None where nothing tells.
        time: when it was saved, as ISO 8601; None likewise.
        size_bytes: that become free.
        weights_stay: whether its weights are left.
    """

    path: str
    why: str
    step: int | None
    time: str | None
    size_bytes: int
    weights_stay: bool


class Prune:
    """One look at a run, and what is to be done after it.

    Args:
        url: of its directory.
        options: for fsspec.
        given: fields of `Keep` that the user names; the others are those that the newest attempt has recorded.

    Attributes:
        keep: what is kept.
        doomed: what goes.
        stays: path of each checkpoint of the line that stays, with the rules that keep it.
        off_line: path of each that stays and is on no line, with the reason.
        odd: what stays because it cannot be understood, a sentence each.
        alive_s: seconds since the newest attempt was heard of, where it may be running; None where it is not.

    Raises:
        CheckpointNotFoundError: there is no run.
        CorruptCheckpointError: it cannot be understood.
        ValueError: nothing says what to keep.
        OSError: the store cannot be read.
    """

    def __init__(self, url: str, options: Mapping[str, Any], given: Mapping[str, Any]) -> None:
        self._lineage = look_at(url, None, options)
        self._view = self._lineage.glance(self._lineage.store)
        newest = self._view.newest()
        if newest is None:
            raise CheckpointNotFoundError(no_run(self._view.store), path=url)
        self._attempt = newest
        self.keep = _keep(newest, given)
        seen = _outlook(self._view, self.keep, newest)
        self.odd = list(seen.odd)
        _check_metric(self.keep, seen.line)
        self._removals: dict[str, Removal] = {}
        self.doomed: list[Doomed] = []
        for removal in seen.removals:
            if removal.is_whole or not removal.folder.startswith(f"{newest.name}/"):
                self._add(removal)
        self.stays = list(_stays(seen.line, self.keep))
        self.off_line = off_line(self._view, seen, self.keep, newest)
        self.alive_s = _alive_s(self._view, newest)
        self._add_asides()

    @property
    def url(self) -> str:
        """Of the run's directory."""
        return self._lineage.store.url

    @property
    def attempt(self) -> str:
        """The newest one."""
        return self._attempt.name

    def _add(self, removal: Removal) -> None:
        step, time, size_bytes = self._look(removal)
        if removal.thinned is None or size_bytes:  # one that was thinned before has nothing left to take away
            self._removals[removal.folder] = removal
            stays = removal.thinned is not None
            self.doomed.append(Doomed(removal.folder, removal.why, step, time, size_bytes, stays))

    def _add_asides(self) -> None:
        """Those that nobody writes over any more; the next start deletes them too, but there may be none."""
        store = self._view.store
        for attempt in self._view.attempts():
            if attempt.name != self.attempt or self.alive_s is None:
                for key in kept_aside(store, attempt.name):
                    with suppress(FileNotFoundError):
                        self.doomed.append(Doomed(key, _ASIDE, None, None, store.size(key), weights_stay=False))

    def _look(self, removal: Removal) -> tuple[int | None, str | None, int]:
        """Step, time, and the bytes that become free."""
        stays = (MODEL_FILE, WEIGHTS_FILE) if removal.thinned is not None else ()
        try:
            attempt, name = removal.folder.split("/")
            brief = self._view.read_brief(CheckpointRef(attempt, name))
        except ResumeError:  # thinned before, half-written or damaged
            return None, None, self._size(removal.folder, stays)
        progress, time = brief.header.get("progress"), brief.header.get("time")
        step = progress.get("step") if isinstance(progress, dict) else None
        size_bytes = sum(size_bytes for file, size_bytes in brief.sizes.items() if file not in stays)
        return step, time if isinstance(time, str) else None, size_bytes

    def _size(self, folder: str, stays: tuple[str, ...]) -> int:
        store = self._view.store
        found = 0
        for name in store.list(folder):
            if is_checkpoint_file(name) and name not in stays:
                found += store.size(join_key(folder, name))
        return found

    def delete(self) -> Iterator[Pruned]:
        """Delete what is doomed, one after the other, and say what became of each.

        Raises:
            SupersededError: a newer attempt has started: the rest is left to it.
            OSError: it cannot be told whether one has.
        """
        for one in self.doomed:
            self._lineage.check_newest(self._attempt)
            store, removal = self._lineage.store, self._removals.get(one.path)
            yield remove_aside(store, one.path) if removal is None else remove(store, [removal])

    def as_json(self) -> dict[str, Any]:
        """What was found, as strict JSON."""
        return {
            "url": self.url,
            "attempt": self.attempt,
            "keep": asdict(self.keep),
            "freed_bytes": sum(one.size_bytes for one in self.doomed),
            "doomed": [vars(one) for one in self.doomed],
            "stays": [{"path": path, "kept_by": rules} for path, rules in self.stays],
            "off_line": [{"path": path, "why": why} for path, why in self.off_line],
            "odd": self.odd,
            "alive_s": self.alive_s,
        }


def _outlook(view: Lineage, keep: Keep, newest: Attempt) -> Outlook:
    """What goes while each of the newest that stay has all its files: one that has lost some does not count."""
    damaged: dict[str, str] = {}
    sound = set[str]()
    while True:
        seen = outlook(view, keep, newest, finished_fit, damaged=damaged)
        counted = [entry.ref for entry in seen.line if entry.is_sound][: keep.last]
        unknown = [ref for ref in counted if ref.path not in sound]
        if not unknown:
            return seen
        for ref in unknown:
            if wrong := "; ".join(flaws(view.store, ref, view.read_brief(ref).sizes)):
                damaged[ref.path] = wrong
            else:
                sound.add(ref.path)


def _keep(attempt: Attempt, given: Mapping[str, Any]) -> Keep:
    keep = recorded_keep(attempt)
    if keep is None and not given:
        raise ValueError(f"{attempt.name} has not recorded what it keeps: say it, as in --last 3")
    names = {field.name for field in fields(Keep)}
    return replace(keep or Keep(), **{name: value for name, value in given.items() if name in names})


def _check_metric(keep: Keep, line: tuple[Entry, ...]) -> None:
    """A metric that no checkpoint has keeps nothing, and is misspelt more often than not."""
    if keep.best is None or not line or any(entry.metric(keep.best) is not None for entry in line):
        return
    known = sorted({name for entry in line for name in entry.header.get("metrics") or {}})
    what = f"they have {', '.join(known)}" if known else "they have none"
    raise ValueError(f"no checkpoint has the metric {keep.best!r} that says which is best; {what}")


def _stays(line: tuple[Entry, ...], keep: Keep) -> Iterator[tuple[str, list[str]]]:
    for entry, verdict, rules in zip(line, judge(line, keep), reasons(line, keep), strict=True):
        if verdict != "delete":
            yield entry.ref.path, rules


def _alive_s(view: Lineage, attempt: Attempt) -> float | None:
    try:
        past = read_heard(view, attempt.name, view.attempts())
        if past is None or past.cause is not None:
            return None
        ago = datetime.now(timezone.utc) - datetime.fromisoformat(past.seen)
    except (CorruptCheckpointError, TypeError, ValueError):
        return None
    return max(ago.total_seconds(), 0.0) if ago < _IS_ALIVE else None
