"""What decides a run, compared between the run that saved and the run that resumes.

A plugin merges the facts that the ``describe_*`` functions read off the live objects with those it alone knows (world
size, precision, accumulation; a later end of training is information, since the horizon of each scheduler is a fact of
its own). They are saved with every checkpoint and compared before anything is loaded.

Without torch, so that commands which compare checkpoints start at once.
"""

from __future__ import annotations

import enum
import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, get_args

from resume_core.capture.as_saved import goes_on_as_saved
from resume_core.capture.exactness import ends_exactness
from resume_core.capture.facts_version import is_new
from resume_core.columns import aligned, pair
from resume_core.errors import ConfigChangedError, CorruptCheckpointError
from resume_core.nearest import nearest
from resume_core.policy import Changes
from resume_core.state import Fact, RunConfig, Severity

__all__ = [
    "ABSENT",
    "Accepted",
    "Difference",
    "as_seen_by",
    "check",
    "diff",
    "from_json",
    "idle_names",
    "idle_text",
    "table",
    "to_json",
]

_HPARAMS = ("hparams.", "data_hparams.", "model_config.")  # what the names of a user's own settings begin with
_SEVERITIES: tuple[Severity, ...] = get_args(Severity)  # gravest first
_OF_RANK = re.compile(r"code\..*|(?:data_)?hparams\..*|sample_ids\..*|data\..*\.(?:files|collate_fn\.).*")
_MAX_ROWS = 20  # of one severity in a table
_MAX_NAMES = 8  # in the snippet that allows them; more are named by what they have in common


class _Absent(enum.Enum):
    ABSENT = "(absent)"


ABSENT = _Absent.ABSENT
"""Stands for a fact that one side does not have."""


@dataclass(frozen=True)
class Difference:
    """One fact that is not the same on both sides.

    Attributes:
        name: its dotted name, as `Changes.allow` takes it.
        saved: the value in the checkpoint, plain JSON, or `ABSENT`.
        current: the value of the run that resumes, plain JSON, or `ABSENT`.
        severity: the milder one of both sides.
    """

    name: str
    saved: Any
    current: Any
    severity: Severity

    @property
    def is_two_sided(self) -> bool:
        """Whether both sides have the fact."""
        return self.saved is not ABSENT and self.current is not ABSENT

    def as_dict(self) -> dict[str, Any]:
        """The difference as plain JSON; a side that lacks the fact has no entry."""
        sides = {"saved": self.saved, "current": self.current}
        present = {side: value for side, value in sides.items() if value is not ABSENT}
        return {"name": self.name, "severity": self.severity, **present}


@dataclass(frozen=True)
class Accepted:
    """The differences that a restore goes on with.

    Attributes:
        allowed: changes of the run or of its structure that the user allowed by name.
        warned: changes of the run that pass because of ``Changes(otherwise="warn")``; to be logged as warnings.
        info: changes that block nothing; to be logged.
    """

    allowed: tuple[Difference, ...] = ()
    warned: tuple[Difference, ...] = ()
    info: tuple[Difference, ...] = ()

    @property
    def inexact(self) -> tuple[Difference, ...]:
        """Those of ``info`` that may change numbers from here on; to be logged as warnings."""
        return tuple(d for d in self.info if d.is_two_sided and ends_exactness(d.name, d.saved, d.current))

    def record(self) -> list[dict[str, Any]]:
        """What an attempt keeps of it, as plain JSON: ``as_dict`` of each, as what it was accepted, and if applied."""
        kinds = {"allowed": self.allowed, "warned": self.warned, "inexact": self.inexact}
        return [
            d.as_dict() | {"accepted_as": kind, "is_applied": not goes_on_as_saved(d.name)}
            for kind, differences in kinds.items()
            for d in differences
        ]


def as_seen_by(rank: int, saved: RunConfig, current: RunConfig) -> RunConfig:
    """The facts of one rank as far as they are to be compared: what is saved are those of rank 0.

    Ranks may have files, hyperparameters and code of their own, so those are compared by rank 0 alone.
    """
    if rank == 0:
        return current
    shared = {name: fact for name, fact in current.items() if not _OF_RANK.fullmatch(name)}
    return shared | {name: fact for name, fact in saved.items() if _OF_RANK.fullmatch(name)}


def diff(saved: RunConfig, current: RunConfig) -> tuple[Difference, ...]:
    """Every fact that differs or that only one side has: gravest first, then in the order of the facts.

    Where the sides disagree on how grave a fact is, the milder holds: so an unseeded run, whose seed is information,
    differs from a seeded one without blocking it. What the release that saved did not look at is information.
    """
    names = dict.fromkeys([*saved, *current])
    known = {name: Fact(current[name].value, "info") for name in current if name not in saved and is_new(name, saved)}
    current = {**current, **known}
    found = [_compare(name, saved.get(name), current.get(name)) for name in names]
    differences = _without_echoes([difference for difference in found if difference is not None])
    return tuple(sorted(differences, key=lambda difference: _SEVERITIES.index(difference.severity)))


def _without_echoes(found: list[Difference]) -> list[Difference]:
    """A setting of the user's own that says again what other facts say, or is new in their code, is information."""
    reasons = [(d.saved, d.current) for d in found if not d.name.startswith(_HPARAMS)]
    shapes = any(d.severity == "structure" for d in found)  # one of them is why

    def is_echo(d: Difference) -> bool:
        return d.name.startswith(_HPARAMS) and (shapes or not d.is_two_sided or (d.saved, d.current) in reasons)

    return [replace(d, severity="info") if is_echo(d) else d for d in found]


def _compare(name: str, saved: Fact | None, current: Fact | None) -> Difference | None:
    sides = [fact for fact in (saved, current) if fact is not None]
    if len(sides) == 2 and sides[0].value == sides[1].value:
        return None
    severity = max((fact.severity for fact in sides), key=_SEVERITIES.index)
    return Difference(name, saved.value if saved else ABSENT, current.value if current else ABSENT, severity)


def check(
    saved: RunConfig, current: RunConfig, changes: Changes, *, path: str = "", step: int | None = None
) -> Accepted:
    """Compare two runs and refuse every change that the user did not allow.

    Args:
        saved: the facts in the checkpoint.
        current: the facts of the run that resumes, taken before anything was loaded.
        changes: what the user allows. ``otherwise="warn"`` lets changes of the run pass, never those of structure.
        path: the checkpoint, for the error.
        step: its step, for the error.

    Returns:
        What was accepted, and why.

    Raises:
        ConfigChangedError: with all refused differences, each with both values, in one table.
    """
    differences = diff(saved, current)
    info = tuple(d for d in differences if d.severity == "info")
    allowed = tuple(d for d in differences if d.severity != "info" and changes.accepts(d.name))
    rest = tuple(d for d in differences if d.severity != "info" and not changes.accepts(d.name))
    warned = tuple(d for d in rest if d.severity == "run" and changes.otherwise == "warn")
    refused = tuple(d for d in rest if d not in warned) if warned else rest
    if refused:
        message = _message(refused, changes, {*saved, *current})
        raise ConfigChangedError(message, differences=refused, path=path, step=step)
    return Accepted(allowed=allowed, warned=warned, info=info)


def _message(refused: tuple[Difference, ...], changes: Changes, known: set[str]) -> str:
    intro = "The run differs from the one that wrote the checkpoint. Nothing was loaded."
    return f"{intro}\n\n{table(refused)}\n\n{_advice(refused, changes, idle_names(changes, known), known)}"


def idle_names(changes: Changes, known: Iterable[str]) -> list[str]:
    """Names in ``changes.allow`` that no fact has: misspelt, mostly."""
    facts = list(known)
    return [name for name in changes.allow if not any(Changes((name,)).accepts(fact) for fact in facts)]


def idle_text(idle: Iterable[str], known: Iterable[str]) -> str:
    """Such names for a message, each with the one that may have been meant."""
    facts = list(known)
    parts = {".".join(words[:num]) for fact in facts for words in [fact.split(".")] for num in range(1, len(words) + 1)}
    near = {name: nearest(name, parts) for name in idle}
    return ", ".join(f"{name!r} (did you mean {found!r}?)" if found else repr(name) for name, found in near.items())


def _advice(refused: tuple[Difference, ...], changes: Changes, idle: list[str], known: Iterable[str]) -> str:
    names = [difference.name for difference in refused if difference.severity == "run"]
    mixed = 0 < len(names) < len(refused)
    steps = ["restore the saved values" + ("" if len(names) == len(refused) else " (* cannot be loaded otherwise)")]
    if names:
        useful = [name for name in changes.allow if name not in idle]
        allow = list(map(json.dumps, (*useful, *_common(names))))
        listed = f"({allow[0]},)" if len(allow) == 1 else f"({', '.join(allow)})"
        which = " of the others" if mixed else ""
        steps.append(f"or accept the differences{which}: Changes(allow={listed}){_applied(names)}")
    if idle:
        steps.insert(0, f"Changes(allow=...) names what no run has: {idle_text(idle, known)}")
    steps.append("or start afresh in another directory")
    fixed = [name for name in names if name != "seed" and goes_on_as_saved(name)]
    if fixed:
        what = "another lr" if all(name.endswith("lr") for name in fixed) else "other settings"
        steps.append(
            f"to train on with {what}, export the weights and begin another run in another directory from them"
        )
    return "\n  - ".join(["What to do:", *steps])


def _applied(names: list[str]) -> str:
    """Of what would be accepted, what is not applied then; the rest is."""
    saved = [name for name in names if goes_on_as_saved(name)]
    if not saved:
        return ""
    others = "; the others apply as they are now" if len(saved) < len(names) else ""
    return f"\n    (the run starts then, and has {', '.join(_common(saved))} as saved all the same{others})"


def _common(names: list[str]) -> list[str]:
    if len(names) <= _MAX_NAMES:
        return names
    return list(dict.fromkeys(name.partition(".")[0] for name in names))


def table(differences: Iterable[Difference]) -> str:
    """The differences as aligned columns ``name | saved | current``.

    Structure is marked with ``*``. Of each severity the first 20 rows are shown, and the number of the others.
    """
    differences = tuple(differences)
    rows = [("", "name", "saved", "current")]
    for severity in _SEVERITIES:
        group = [difference for difference in differences if difference.severity == severity]
        rows += [_row(difference) for difference in group[:_MAX_ROWS]]
        if len(group) > _MAX_ROWS:
            rows.append((" ", f"… and {len(group) - _MAX_ROWS} more", "", ""))
    return aligned(rows)


def _row(difference: Difference) -> tuple[str, str, str, str]:
    mark = "*" if difference.severity == "structure" else " "
    return mark, difference.name, *pair(_shown(difference.saved), _shown(difference.current))


def _shown(value: object) -> str:
    return ABSENT.value if value is ABSENT else json.dumps(value, ensure_ascii=False)


def to_json(config: RunConfig) -> dict[str, dict[str, Any]]:
    """The facts as plain JSON: severity -> name -> value.

    Raises:
        ValueError: a value is not plain JSON, or would not compare equal once it was written and read back.
    """
    data: dict[str, dict[str, Any]] = {severity: {} for severity in _SEVERITIES}
    for name, fact in config.items():
        if not _is_plain(fact.value):
            raise ValueError(f"the fact {name!r} is not plain JSON: {fact.value!r}")
        data[fact.severity][name] = fact.value
    return data


def from_json(data: object) -> dict[str, Fact]:
    """The facts that `to_json` wrote.

    Raises:
        CorruptCheckpointError: ``data`` is of another form.
    """
    if not isinstance(data, Mapping) or set(data) != set(_SEVERITIES):
        raise CorruptCheckpointError(f"a run config has exactly the parts {', '.join(_SEVERITIES)}")
    config: dict[str, Fact] = {}
    for severity in _SEVERITIES:
        config |= _facts(data[severity], severity, taken=config)
    return config


def _facts(part: object, severity: Severity, taken: Mapping[str, Fact]) -> dict[str, Fact]:
    if not isinstance(part, Mapping):
        raise CorruptCheckpointError(f"the {severity} part of a run config is not an object")
    for name, value in part.items():
        if type(name) is not str or name in taken or not _is_plain(value):
            raise CorruptCheckpointError(f"the run config has a fact that cannot be read: {name!r}")
    return {name: Fact(value, severity) for name, value in part.items()}


def _is_plain(value: object) -> bool:
    kind = type(value)
    if kind is dict:
        return all(type(key) is str and _is_plain(item) for key, item in value.items())  # type: ignore[attr-defined]
    if kind is list:
        return all(map(_is_plain, value))  # type: ignore[call-overload]
    if kind is float:
        return math.isfinite(value)  # type: ignore[arg-type]
    return value is None or kind in (str, int, bool)
