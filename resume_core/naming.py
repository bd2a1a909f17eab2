"""What people call a checkpoint, and which one they mean: one rule for `resume=` and for every command.

A name is an attempt, a checkpoint, or both with a slash between them. The attempt goes by its number or by the
beginning of its folder (``attempt-0002-7f3a``, ``attempt-0002``, ``attempt 2``), the checkpoint by its step (``step
120``, ``120``, ``120.2`` for the second one of that step) or by the beginning of its folder. An attempt alone means its
newest checkpoint, a step alone that of the newest attempt that has it, ``latest`` the newest of the run's line, and
``best`` the one that its ``Keep(best=)`` keeps. (The last is for commands alone: a start that went back to the best one
at each kill would never come further.)

Names are looked up among folders, so that of many checkpoints no manifest is read but that of the one.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from resume_core.best import best_checkpoint
from resume_core.errors import CheckpointNotFoundError, CorruptCheckpointError, ResumeError
from resume_core.no_run import no_run
from resume_core.storage import CheckpointRef, Lineage, read_history
from resume_core.storage.newer import by_number, by_step
from resume_core.storage.paths import parse_attempt_folder, parse_checkpoint_folder

__all__ = ["Name", "absence", "is_best", "is_latest", "is_name", "nothing_left", "parse_name", "resolve", "select"]

_BEST = "best"
_LATEST = ("latest", "newest")
_ATTEMPT_NUMBER = re.compile(r"attempt[- ]?0*([0-9]{1,9})", re.IGNORECASE)
_STEP_NUMBER = re.compile(r"(?:step[- _]?)?([0-9]{1,18})(?:\.([0-9]{1,9}))?", re.IGNORECASE)
_NAME = re.compile(
    r"(?:attempt[- ]?[0-9]{1,9}(?:-[0-9a-f]{0,4})?/?)?(?:(?:step[- _]?)?[0-9]{0,18}(?:\.[0-9]{1,9})?|latest|newest)",
    re.IGNORECASE,
)
_DIGITS = 9  # of a step in the name of its folder
_MOST_NAMED, _MOST_LISTED = 3, 20


@dataclass(frozen=True)
class Name:
    """The two parts of a name; what was not said is empty.

    Attributes:
        attempt: words for the attempt.
        checkpoint: words for a checkpoint of it.
    """

    attempt: str = ""
    checkpoint: str = ""

    def attempts(self, folders: Sequence[str]) -> list[str]:
        """The folders of attempts that it fits."""
        if found := _ATTEMPT_NUMBER.fullmatch(self.attempt):
            numbered = [one for one in folders if by_number(one)[0] == int(found[1])]
            if numbered:
                return numbered
        return [one for one in folders if one.startswith(self.attempt)]

    def checkpoints(self, folders: Sequence[str]) -> list[str]:
        """The folders of checkpoints that it fits: the very one, where there is one."""
        if self.checkpoint in folders:
            return [self.checkpoint]
        step = _STEP_NUMBER.fullmatch(self.checkpoint)
        # zeros in front are the beginning of a folder's name, unless all of them are there
        if step and (step[1] == "0" or step[1][0] != "0" or len(step[1]) >= _DIGITS):
            place = int(step[1]), int(step[2] or 1)
            exact = [one for one in folders if parse_checkpoint_folder(one) == place]
            if exact:
                return exact
        return [one for one in folders if one.startswith(self.checkpoint)]


def parse_name(text: str) -> Name:
    """What a text says of attempt and checkpoint, whether there are such or not."""
    attempt, slash, checkpoint = text.strip().strip("/").rpartition("/")
    if not slash and checkpoint.lower().startswith("attempt"):
        attempt, checkpoint = checkpoint, ""
    return Name(attempt, "" if is_latest(checkpoint) else checkpoint)


def is_latest(text: str) -> bool:
    """Whether a text asks for the newest checkpoint, of a run or of an attempt, by that word."""
    return text.strip().strip("/").rpartition("/")[2].lower() in _LATEST


def is_best(text: str) -> bool:
    """Whether a text asks for the best checkpoint of a run, by that word."""
    return text.strip().lower() == _BEST


def is_name(text: str) -> bool:
    """Whether a text can only be the name of an attempt or a checkpoint, and no place."""
    return bool(text.strip()) and _NAME.fullmatch(text.strip().strip("/")) is not None


def select(lineage: Lineage, text: str) -> Iterator[CheckpointRef]:
    """All folders of checkpoints that a name fits, whatever is in them, those of the newest attempt first.

    Raises:
        OSError: the store cannot be read.
    """
    name = parse_name(text)
    for attempt in name.attempts(_attempts(lineage)):
        for checkpoint in reversed(name.checkpoints(_checkpoints(lineage, attempt))):
            yield CheckpointRef(attempt, checkpoint)


def resolve(lineage: Lineage, text: str, *, thinned: bool = False) -> CheckpointRef:
    """The one checkpoint that a name means; its serial is None where its manifest cannot be read.

    Args:
        lineage: of the run.
        text: the name; empty for the newest of the run's line.
        thinned: one of which the weights alone are left will do.

    Raises:
        CheckpointNotFoundError: none or several fit; names the nearest, or those that do.
        OSError: the store cannot be read.
    """
    if is_best(text):
        return _best(lineage, thinned=thinned)
    name = parse_name(text)
    if name == Name():
        for ref in lineage.candidates():
            return ref
        said = f"{text!r}: " if text else ""
        raise CheckpointNotFoundError(f"{said}{nothing_left(lineage)}", path=lineage.store.url)
    if not name.checkpoint:
        attempts = name.attempts(_attempts(lineage))
        if len(attempts) > 1:
            raise _ambiguity(lineage, text, attempts)
        if attempts and (found := lineage.checkpoints(attempts[0])):
            return found[0]
        raise absence(lineage, text)
    return _resolve_checkpoint(lineage, text, name, thinned=thinned)


def _best(lineage: Lineage, *, thinned: bool) -> CheckpointRef:
    ref = best_checkpoint(lineage)
    if not thinned and not lineage.tiers.committed(ref):
        raise absence(lineage, ref.path)
    return ref


def _resolve_checkpoint(lineage: Lineage, text: str, name: Name, *, thinned: bool) -> CheckpointRef:
    fitting = list(select(lineage, text))
    found = [ref for ref in fitting if lineage.tiers.committed(ref)]
    if thinned and not found:
        found = [ref for ref in fitting if lineage.tiers.with_weights(ref)]
    if not name.attempt:
        found = [ref for ref in found if ref.attempt == found[0].attempt]
    if len(found) > 1:
        raise _ambiguity(lineage, text, [ref.path for ref in found])
    if not found:
        raise absence(lineage, text)
    return _with_serial(lineage, found[0])


def _with_serial(lineage: Lineage, ref: CheckpointRef) -> CheckpointRef:
    try:
        return lineage.read_manifest(ref).ref
    except (CorruptCheckpointError, CheckpointNotFoundError):  # whoever reads it will tell
        return ref


def _attempts(lineage: Lineage) -> list[str]:
    """Their folders, the newest first."""
    found = [name for name in lineage.store.list("") if parse_attempt_folder(name) is not None]
    return sorted(found, key=by_number, reverse=True)


def _checkpoints(lineage: Lineage, attempt: str) -> list[str]:
    """Their folders, by their steps."""
    return sorted(lineage.names(attempt), key=by_step)


# ---- what is said where there is none


def _ambiguity(lineage: Lineage, text: str, names: Sequence[str]) -> CheckpointNotFoundError:
    more = f" and {len(names) - _MOST_LISTED} more" if len(names) > _MOST_LISTED else ""
    message = f"{text!r} fits {len(names)} in {lineage.store.url}: {', '.join(names[:_MOST_LISTED])}{more}."
    return CheckpointNotFoundError(f"{message} Give more of the name.", path=text)


def absence(lineage: Lineage, text: str) -> CheckpointNotFoundError:
    """The error for a name that fits no checkpoint; says what became of it, or names the nearest.

    Raises:
        OSError: the store cannot be read.
    """
    name, url = parse_name(text), lineage.store.url
    attempts = name.attempts(_attempts(lineage))
    weights = [ref.path for ref in select(lineage, text) if lineage.tiers.with_weights(ref)] if name.checkpoint else []
    if weights:
        what = f"of {weights[0]} in {url} the weights alone are left, as Keep(thin_after=...) asks for"
        return CheckpointNotFoundError(f"{what}: training cannot go on from it. {_nearest(lineage, name)}", path=text)
    if name.attempt and attempts and not any(_has_checkpoint(lineage, one) for one in attempts):
        return CheckpointNotFoundError(f"{_emptied(lineage, attempts[0])} {_nearest(lineage, name)}", path=text)
    lost = "".join(f" {error}" for attempt in attempts for error in lineage.lost(attempt))
    return CheckpointNotFoundError(
        f"there is no checkpoint {text!r} in {url}.{lost} {_nearest(lineage, name)}", path=text
    )


def _has_checkpoint(lineage: Lineage, attempt: str) -> bool:
    refs = (CheckpointRef(attempt, name) for name in reversed(_checkpoints(lineage, attempt)))
    return any(lineage.tiers.committed(ref) for ref in refs)


def _emptied(lineage: Lineage, attempt: str) -> str:
    """What became of the checkpoints of an attempt that has none."""
    url, num = lineage.store.url, 0
    try:
        past = read_history(lineage.store, attempt)
        num = 0 if past is None else int(past.earlier.get("saves", 0)) + len(past.saves)
        num -= 0 if past is None else sum(save.get("end") == "failed" for save in past.saves)
    except (ResumeError, TypeError, ValueError):
        pass
    if not num:
        return f"{attempt} in {url} has no checkpoint, and its history tells of no save."
    saves = "its one save is" if num == 1 else f"its {num} saves are"
    return f"{attempt} in {url} has no checkpoint left: {saves} deleted, by the run's Keep(...), a prune, or by hand."


def nothing_left(lineage: Lineage) -> str:
    """A sentence about a run whose newest line has nothing to go on from.

    Raises:
        OSError: the store cannot be read.
    """
    attempts = _attempts(lineage)
    if not attempts:
        return no_run(lineage.store)
    return f"{_emptied(lineage, attempts[0])} {_nearest(lineage, Name())}"


def _nearest(lineage: Lineage, name: Name) -> str:
    """A sentence that names checkpoints near to one that is not there."""
    folders = _attempts(lineage)
    refs = [CheckpointRef(one, each) for one in folders for each in reversed(_checkpoints(lineage, one))]
    near = [ref for ref in _by_distance(refs, name, folders) if lineage.tiers.committed(ref)][: _MOST_NAMED + 1]
    if not near:
        return "No committed checkpoint exists."
    if len(near) <= _MOST_NAMED:
        return f"What exists: {', '.join(ref.path for ref in near)}."
    named = ", ".join(ref.path for ref in near[:_MOST_NAMED])
    return f"The nearest are {named}; `exact-resume ls {lineage.store.url}` lists them."


def _by_distance(refs: list[CheckpointRef], name: Name, folders: list[str]) -> Iterator[CheckpointRef]:
    """The nearest first, as many as may be needed: by step where one is meant, else by spelling, else the newest."""
    inside = set(name.attempts(folders)) if name.attempt else set()
    step = _STEP_NUMBER.fullmatch(name.checkpoint)
    if step is None:
        spelt = difflib.get_close_matches(f"{name.attempt}/{name.checkpoint}", [ref.path for ref in refs], _MOST_NAMED)
        return islice(sorted(refs, key=lambda ref: (ref.path not in spelt, ref.attempt not in inside)), 50)
    wanted = int(step[1])

    def distance(ref: CheckpointRef) -> tuple[bool, int]:
        return ref.attempt not in inside, abs(by_step(ref.name)[0] - wanted)

    return islice(sorted(refs, key=distance), 50)
