"""What users choose: small frozen dataclasses.

Each field takes what YAML, LightningCLI and Hydra give as well: lists for tuples, strings for numbers are not
guessed, but any sequence is normalised.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, TypeVar

__all__ = ["SaveEvery", "Keep", "Changes", "as_policy", "plain_options"]

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
        raise TypeError(f"{name} must be a {kind.__name__} or a dict of its fields, got {value!r}")
    given, known = plain_options(value), [field.name for field in fields(kind)]  # type: ignore[arg-type]
    unknown = [field for field in given if field not in known]
    if unknown:
        raise TypeError(f"{name} has no {', '.join(map(repr, unknown))}: {kind.__name__} takes {', '.join(known)}")
    return kind(**given)


def plain_options(value: Mapping[str, Any] | None) -> dict[str, Any]:
    """Nested containers of any kind (OmegaConf's among them) as dicts and lists; empty for None."""
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


@dataclass(frozen=True)
class SaveEvery:
    """When to save: whichever of ``steps`` and ``minutes`` comes first.

    Args:
        steps: optimizer steps between saves, None for no rule by steps.
        minutes: wall-clock minutes between saves, None for no rule by time.
        at_start: save before the first batch of a new run. It proves space, credentials and that the state can be
            captured, and it covers a kill before the first periodic save.

    Raises:
        ValueError: a count that is not positive.
    """

    steps: int | None = None
    minutes: float | None = 10.0
    at_start: bool = True

    def __post_init__(self) -> None:
        _positive("SaveEvery.steps", self.steps)
        _positive("SaveEvery.minutes", self.minutes)
        if self.steps is not None and int(self.steps) != self.steps:
            raise ValueError(f"SaveEvery.steps must be a whole number, got {self.steps!r}")


@dataclass(frozen=True)
class Keep:
    """Which checkpoints stay.

    Args:
        last: how many of the newest committed checkpoints stay, at least 1.

    Raises:
        ValueError: ``last`` below 1.
    """

    last: int = 3

    def __post_init__(self) -> None:
        _positive("Keep.last", self.last)
        if int(self.last) != self.last:
            raise ValueError(f"Keep.last must be a whole number, got {self.last!r}")


@dataclass(frozen=True)
class Changes:
    """What may differ between the run that saved and the run that resumes.

    Args:
        allow: names of run-config fields whose change is accepted, as the error's table prints them; a name also
            covers everything below it (``"optimizer"`` covers ``"optimizer.0.lr"``).
        otherwise: ``"error"`` refuses any other change that alters the run, ``"warn"`` logs it and goes on. A change
            of the model's structure cannot be loaded and is refused either way unless it is allowed by name.

    Raises:
        ValueError: ``otherwise`` is neither.
    """

    allow: tuple[str, ...] = ()
    otherwise: Literal["error", "warn"] = "error"

    def __post_init__(self) -> None:
        allow: Iterable[str] = (self.allow,) if isinstance(self.allow, str) else self.allow
        object.__setattr__(self, "allow", tuple(str(name) for name in allow))
        if self.otherwise not in ("error", "warn"):
            raise ValueError(f'Changes.otherwise must be "error" or "warn", got {self.otherwise!r}')

    def accepts(self, name: str) -> bool:
        """Whether a change of the field ``name`` (dotted) was allowed by name."""
        return any(name == allowed or name.startswith(allowed + ".") for allowed in self.allow)
