"""What users choose: small frozen dataclasses.

Each field takes what YAML, LightningCLI and Hydra give as well: lists for tuples, strings for numbers are not
guessed, but any sequence is normalised.
"""

from __future__ import annotations

import functools
import os
import re
import signal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, TypeVar

from resume_core.nearest import did_you_mean

__all__ = ["SaveEvery", "Keep", "Changes", "Preemption", "Check", "Watch", "as_notices", "as_policy", "plain_options"]

_Policy = TypeVar("_Policy")


def as_policy(kind: type[_Policy], value: _Policy | Mapping[str, Any] | None, name: str) -> _Policy:
    """The policy that a user means.

    Args:
        kind: its class.
        value: the policy itself; its fields as YAML, LightningCLI or Hydra give them; None for the default.
        name: of the argument, for messages.

    Raises:
        TypeError: anything else, or a field that the policy does not have.
        ValueError: a field's value is out of range.
    """
    if isinstance(value, kind):
        return value
    if value is not None and not isinstance(value, Mapping):
        meant = _meant(kind, value)
        raise TypeError(
            f"{name} must be a {kind.__name__} or a dict of its fields, got {value!r}."
            + (f" Did you mean {name}={meant}?" if meant else "")
        )
    given = plain_options(value, name)
    _refuse_unknown(name, kind, given)
    return kind(**given)


def _meant(kind: type, value: object) -> str:
    """How a policy is written that does what a plain value in its place seems to ask for; empty where none does."""
    if value is kind:
        return f"{kind.__name__}()"
    short = {"Changes": "allow", "Check": "on_mismatch", "Watch": "on"}.get(kind.__name__)
    off = {"Check": "Check(steps=0)", "Watch": 'Watch(on="off")', "Preemption": "Preemption(signals=(), notices=None)"}
    if value is False or value in ("off", "no", "none"):
        return off.get(kind.__name__, "")
    if isinstance(value, str) and short and (kind is Changes or value in ("warn", "stop")):
        return f'Changes(allow=("{value}",))' if kind is Changes else f'{kind.__name__}({short}="{value}")'
    if isinstance(value, (list, tuple, set)) and kind is Changes:
        return f"Changes(allow={tuple(value)!r})"
    number = {"SaveEvery": "steps", "Keep": "last", "Check": "steps"}.get(kind.__name__)
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return f"{kind.__name__}({number}={value!r})" if number and is_number else ""


def _refuse_unknown(name: str, kind: type, given: Iterable[str]) -> None:
    known = [field.name for field in fields(kind)]
    unknown = [field for field in given if field not in known]
    if unknown:
        raise TypeError(
            f"{name} has no {', '.join(map(repr, unknown))}: {kind.__name__} takes {', '.join(known)}."
            + "".join(did_you_mean(field, known) for field in unknown)
        )


def _spelt(kind: type[_Policy]) -> type[_Policy]:
    """A policy that names the field which a misspelt one may mean, as Python does from 3.13 on."""
    plain = kind.__init__

    @functools.wraps(plain)
    def init(self: Any, *args: Any, **given: Any) -> None:
        _refuse_unknown(kind.__name__, kind, given)
        plain(self, *args, **given)

    kind.__init__ = init  # type: ignore[method-assign]
    return kind


def plain_options(value: Mapping[str, Any] | None, name: str = "options") -> dict[str, Any]:
    """Nested containers of any kind (OmegaConf's among them) as dicts and lists; empty for None.

    Args:
        value: the container.
        name: of the argument, for messages.

    Raises:
        TypeError: it is none.
    """
    if value is not None and not isinstance(value, Mapping):
        raise TypeError(f"{name} must be a dict, got {value!r}")
    return {str(name): _plain(item) for name, item in (value or {}).items()}


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return plain_options(value)
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes, bytearray, tuple)):
        return [_plain(item) for item in value]
    return value


def _positive(name: str, value: float | None, *, minimum: float = 0) -> None:
    if value is not None and not (isinstance(value, (int, float)) and not isinstance(value, bool) and value > minimum):
        raise ValueError(f"{name} must be a number above {minimum} or None, got {value!r}")


def _choice(name: str, value: object, choices: Sequence[str]) -> None:
    if value not in choices:
        quoted = [f'"{choice}"' for choice in choices]
        listed = ", ".join(quoted[:-1]) + f" or {quoted[-1]}"
        raise ValueError(f"{name} must be {listed}, got {value!r}.{did_you_mean(value, choices)}")


def _names(name: str, given: object) -> tuple[str, ...]:
    """One name, or several of any kind of sequence."""
    if given is None or isinstance(given, bool) or not isinstance(given, Iterable):
        raise TypeError(f'{name} must be names, as in ("seed", "data"), got {given!r}')
    return (given,) if isinstance(given, str) else tuple(str(one) for one in given)


def _whole(name: str, value: float | None) -> None:
    _positive(name, value)
    if value is not None and not float(value).is_integer():
        raise ValueError(f"{name} must be a whole number, got {value!r}")


def as_notices(value: Any, name: str) -> tuple[str, ...]:
    """Where notices may come from, as `Preemption` takes them; empty for nowhere.

    Args:
        value: one of them or several; None, False or ``"off"`` for none.
        name: of the argument, for messages.

    Raises:
        ValueError: something that is none of them.
    """
    if value is None or value is False or value in ("off", "none"):
        return ()
    several = isinstance(value, Iterable) and not isinstance(value, (str, bytes))
    return tuple(dict.fromkeys(_notice(item, name) for item in (value if several else (value,))))


_CLOUD = re.compile(r"auto|(?:aws|gcp|azure)(?:=https?://\S+)?")


def _notice(item: Any, name: str) -> str:
    text = os.fspath(item) if isinstance(item, (str, os.PathLike)) else ""
    text = text.removeprefix("file://") if isinstance(text, str) else ""
    if _CLOUD.fullmatch(text) or re.fullmatch(r"https?://[^\s/]\S*", text):
        return text
    # a word without a slash is a cloud misspelt rather than a file
    if "://" not in text and (os.sep in text or isinstance(item, os.PathLike)):
        return os.path.abspath(os.path.expanduser(text))
    raise ValueError(
        f'{name}: {item!r} is none of "auto", "aws", "gcp", "azure" (each of the three also as '
        f'"aws=http://host:port"), the http(s) URL of a notice, and the path of a file with a slash in it ("./notice").'
        + did_you_mean(item, ("auto", "aws", "gcp", "azure", "off"))
    )


@_spelt
@dataclass(frozen=True)
class SaveEvery:
    """When to save: whichever of ``steps``, ``epochs`` and ``minutes`` comes first.

    Whatever they say, a run saves at the end of training as well, and where it leaves (`Preemption`).

    Args:
        steps: optimizer steps between saves, None for no rule by steps.
        minutes: wall-clock minutes between saves, None for no rule by time.
        at_start: save before the first batch of a new run. It proves space, credentials and that the state can be
            captured, and it covers a kill before the first periodic save.
        mtbf_hours: mean hours between interruptions of the job, as far as you know. Then the time between saves follows
            from that and from what saves cost here, by the optimum of Young and Daly, as soon as a save is measured;
            ``minutes`` holds until then, or 10 where it is None. Interruptions that the run has had (kills and
            preemptions; no errors, no Ctrl-C) count as they are observed.
        max_overhead: the share of training time that saving may take, 0.01 for 1 %. With ``mtbf_hours`` saves are never
            more frequent than that; otherwise you are warned, once.
        epochs: save at the end of each so many epochs, None for no rule by epochs.

    Raises:
        ValueError: a number out of range.
    """

    steps: int | None = None
    minutes: float | None = 10.0
    at_start: bool = True
    mtbf_hours: float | None = None
    max_overhead: float = 0.01
    epochs: int | None = None

    def __post_init__(self) -> None:
        _whole("SaveEvery.steps", self.steps)
        _whole("SaveEvery.epochs", self.epochs)
        _positive("SaveEvery.minutes", self.minutes)
        _positive("SaveEvery.mtbf_hours", self.mtbf_hours)
        _positive("SaveEvery.max_overhead", self.max_overhead or -1)
        if self.max_overhead >= 1:
            raise ValueError(f"SaveEvery.max_overhead must be a share below 1, got {self.max_overhead!r}")


@_spelt
@dataclass(frozen=True)
class Keep:
    """Which checkpoints stay. What any of the rules keeps stays; the newest one always does.

    Args:
        last: how many of the newest committed checkpoints stay, at least 1.
        every_steps: milestones: of each multiple of so many optimizer steps, the first checkpoint at or after it.
        every_epochs: milestones: of each multiple of so many epochs, the first checkpoint at or after its end.
        best: name of a metric, as ``self.log`` gives it; the checkpoint with the best value stays. Of several that
            carry one value it is the first, and what is not finite is never the best. A save carries the value of the
            validation before it, so that its weights are those that were judged only where it falls on that
            validation: ``SaveEvery(steps=)`` a divisor of the steps between two of them, or ``epochs=1``.
        mode: ``"min"`` when a smaller ``best`` is better, ``"max"`` when a larger one is.
        thin_after: milestones and the best one are left with their weights alone as soon as so many newer checkpoints
            exist. Training cannot go on from them any more. None: they stay whole.

    Raises:
        ValueError: a count that is not a positive whole number, another ``mode``, an empty name, or ``thin_after``
            without a rule that keeps something to be thinned.
    """

    last: int = 3
    every_steps: int | None = None
    every_epochs: int | None = None
    best: str | None = None
    mode: Literal["min", "max"] = "min"
    thin_after: int | None = None

    def __post_init__(self) -> None:
        if self.last is None:
            raise ValueError("Keep.last must be a whole number above 0, got None")
        for name in ("last", "every_steps", "every_epochs", "thin_after"):
            _whole(f"Keep.{name}", getattr(self, name))
        if self.best is not None and not (isinstance(self.best, str) and self.best):
            raise ValueError(f"Keep.best must be the name of a metric or None, got {self.best!r}")
        _choice("Keep.mode", self.mode, ("min", "max"))
        if self.thin_after is not None and not (self.every_steps or self.every_epochs or self.best):
            raise ValueError("Keep.thin_after has nothing to thin: give every_steps, every_epochs or best as well")


def _as_ids(given: Any) -> str | tuple[str, ...] | None:
    if given is None:
        return None
    if isinstance(given, (str, os.PathLike)):
        path = os.fspath(given)
        if "://" in path:
            raise ValueError(f"Changes.sample_ids must be a local file or a list of ids, got {path!r}")
        return os.path.abspath(os.path.expanduser(path))
    given = given.tolist() if hasattr(given, "tolist") else given
    if isinstance(given, Mapping) or not isinstance(given, Iterable):
        raise TypeError(f"Changes.sample_ids must be a list of ids or the path of a file, got {given!r:.80}")
    return tuple(map(str, given))


@_spelt
@dataclass(frozen=True)
class Changes:
    """What may differ between the run that saved and the run that resumes.

    Args:
        allow: names of run-config fields whose change is accepted, as the error's table prints them; a name also
            covers everything below it (``"optimizer"`` covers ``"optimizer.0.lr"``).
        otherwise: ``"error"`` refuses any other change that alters the run, ``"warn"`` logs it and goes on. A change
            of the model's structure cannot be loaded and is refused either way unless it is allowed by name.
        sample_ids: what the samples are, in the order of the dataset, for data whose content can change while its
            length stays: a list of ids, or the path of a file with one a line. Their number and a digest are compared
            when both runs give them.

    Raises:
        ValueError: ``otherwise`` is neither, or ``sample_ids`` is a URL.
        TypeError: ``allow`` is no name and no names, or ``sample_ids`` is neither a path nor ids.
    """

    allow: tuple[str, ...] = ()
    otherwise: Literal["error", "warn"] = "error"
    sample_ids: str | Sequence[str | int] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "allow", _names("Changes.allow", self.allow))
        _choice("Changes.otherwise", self.otherwise, ("error", "warn"))
        object.__setattr__(self, "sample_ids", _as_ids(self.sample_ids))

    def accepts(self, name: str) -> bool:
        """Whether a change of the field ``name`` (dotted) was allowed by name."""
        return any(name == allowed or name.startswith(allowed + ".") for allowed in self.allow)


def _signals(given: Any) -> tuple[Any, ...]:
    several = isinstance(given, Iterable) and not isinstance(given, str)
    return tuple(given) if several else (given,) if given else ()


def _signal(given: Any) -> str:
    name = given.name if isinstance(given, signal.Signals) else str(given)
    known = [one for one in signal.Signals.__members__ if one not in ("SIGKILL", "SIGSTOP")]
    if name not in known:
        meant = f"SIG{name}" if f"SIG{name}" in known else name
        problem = f"Preemption.signals: {name!r} is no signal that this process can handle."
        raise ValueError(problem + did_you_mean(meant, known))
    return name


@_spelt
@dataclass(frozen=True)
class Preemption:
    """What to do when the machine is taken away: save at the next boundary, then end the process.

    Args:
        signals: names of signals that announce it; none of them turns this off.
        grace_s: seconds between the signal and the end of the machine.
        max_hours: hours that this process may train; it leaves as long before their end as saving takes. None: as long
            as it likes. The end of a job that SLURM names (``SLURM_JOB_END_TIME``) is met in the same way.
        exit_code: of the process that leaves.
        requeue: in a batch job of SLURM, put that into the queue again, after a signal and at its time limit; not after
            SIGTERM, which SLURM itself sends, and who cancels the job.
        notices: where the end of the machine is announced beside signals, one place or several. ``"auto"`` asks the
            metadata services of AWS, GCP and Azure, and is over within a second where none answers; ``"aws"``,
            ``"gcp"`` or ``"azure"`` one of them, ``"aws=http://host:port"`` at an address of your own. The path of a
            file: that it appears, or changes, is the notice. An ``http(s)`` URL: that it answers 200 is, 404 and 204
            say that there is none. None, False or ``"off"``: nothing is asked. The environment variable
            ``EXACT_RESUME_NOTICES``, places with commas between them, overrides it.

    Raises:
        ValueError: no such signal, one that no process can handle, a number out of range, or no such place.
    """

    signals: tuple[str, ...] = ("SIGTERM", "SIGUSR1")
    grace_s: float = 30.0
    max_hours: float | None = None
    exit_code: int = 143
    requeue: bool = True
    notices: str | Sequence[str] | bool | None = "auto"

    def __post_init__(self) -> None:
        object.__setattr__(self, "signals", tuple(map(_signal, _signals(self.signals))))
        object.__setattr__(self, "notices", as_notices(self.notices, "Preemption.notices"))
        _positive("Preemption.grace_s", self.grace_s or -1)
        _positive("Preemption.max_hours", self.max_hours)
        if not isinstance(self.exit_code, int) or not 0 <= self.exit_code < 256:
            raise ValueError(f"Preemption.exit_code must be a number from 0 to 255, got {self.exit_code!r}")


@_spelt
@dataclass(frozen=True)
class Check:
    """Evidence: the first steps after a resume are compared with what the interrupted run recorded of them.

    Args:
        steps: optimizer steps that are recorded after each save, and compared after a resume; 0 turns this off.
        rtol: relative tolerance for losses, norms and weights, None to choose: exactly on the same hardware and
            versions where computing is deterministic (the CPU, or `torch.use_deterministic_algorithms`), else 1e-3, and
            2e-2 for weights of half precision. Positions, sample ids and learning rates are compared exactly anyhow.
        on_mismatch: ``"warn"`` says so and trains on. ``"stop"`` raises `DivergedError`; until the check is over no
            scheduled save is taken, so that the checkpoint it went on from stays the newest.

    Raises:
        ValueError: a number out of range, or another ``on_mismatch``.
    """

    steps: int = 3
    rtol: float | None = None
    on_mismatch: Literal["warn", "stop"] = "warn"

    def __post_init__(self) -> None:
        _whole("Check.steps", self.steps or 1)
        if self.rtol is not None and not (isinstance(self.rtol, (int, float)) and 0 <= self.rtol < 1):
            raise ValueError(f"Check.rtol must be a number from 0 to below 1 or None, got {self.rtol!r}")
        _choice("Check.on_mismatch", self.on_mismatch, ("warn", "stop"))


@_spelt
@dataclass(frozen=True)
class Watch:
    """What is watched all along: NaN or infinity in loss or gradients, and jumps of either.

    Args:
        on: ``"warn"`` says so and trains on, ``"stop"`` raises `DivergedError` at the next boundary, before anything is
            saved there; ``"off"`` watches nothing.

    Raises:
        ValueError: none of them.
    """

    on: Literal["warn", "stop", "off"] = "warn"

    def __post_init__(self) -> None:
        if not self.on:  # as YAML 1.1 reads the word
            object.__setattr__(self, "on", "off")
        _choice("Watch.on", self.on, ("warn", "stop", "off"))
