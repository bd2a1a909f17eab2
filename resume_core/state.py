"""The leaf types that the parts hand to one another: no logic, no I/O.

*State* is what one rank captured, in memory; a *checkpoint* is one committed save of all ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import torch  # the command line starts without

Severity = Literal["structure", "run", "info"]
"""*structure*: cannot be loaded. *run*: changes the run. *info*: logged, never blocks."""


@dataclass(frozen=True)
class State:
    """What one rank captured: live references, no copies.

    Attributes:
        model: parameters and buffers, named as in ``state_dict``.
        training: everything else that is the same on all ranks; a tree of dicts, lists, tensors and plain values.
        rank: what only this rank has: RNG, positions, open gradients, running metrics; a tree likewise.
        info: recorded for people and for the config diff, never restored; may hold anything.
        extras: a file that exports alone read, as the JSON text that `resume_core.image.dumps` gives; of rank 0, and
            empty for none. It is written at each save and costs training nothing: hand over the same object each time.
    """

    model: Mapping[str, torch.Tensor]
    training: Mapping[str, Any]
    rank: Mapping[str, Any]
    info: Mapping[str, Any] = field(default_factory=dict)
    extras: bytes = b""


@dataclass(frozen=True)
class Checkpoint:
    """One committed save of all ranks, read back.

    Attributes:
        progress: where it was taken.
        model: as in `State`; of rank 0.
        training: as in `State`; of rank 0.
        ranks: of each rank, in order, what only it had.
        info: as in `State`; what is not plain stands there as `resume_core.image.Recorded`.
        extras: what was in that file, likewise; empty for none.
    """

    progress: Progress
    model: Mapping[str, torch.Tensor]
    training: Mapping[str, Any]
    ranks: Sequence[Mapping[str, Any]]
    info: Mapping[str, Any]
    extras: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True)  # not frozen, which takes 2 us more to make: one is made for every batch
class Progress:
    """Where training stands at a boundary. Never changed.

    Attributes:
        step: optimizer steps done over the run.
        batch: micro-batches trained on over the run.
        epoch: the epoch the last batch belonged to, counted from 0.
        epoch_batch: micro-batches of that epoch trained on.
        in_window: True inside a half-filled accumulation window.
        is_last: nothing is trained after this boundary.
        ends_epoch: the last batch was the last one of its epoch.
    """

    step: int = 0
    batch: int = 0
    epoch: int = 0
    epoch_batch: int = 0
    in_window: bool = False
    is_last: bool = False
    ends_epoch: bool = False


Ahead = Callable[[], Collection[str]]
"""Gives the kinds of pause that come before the next boundary, as far as that is known; on each rank alike."""


@dataclass(frozen=True)
class Ending:
    """How training ended.

    Attributes:
        cause: the name of the limit that was reached, or ``"stop"`` when something asked for it.
        reached: how far each counter had come, by the name of its limit.
    """

    cause: str
    reached: Mapping[str, float]


@dataclass(frozen=True)
class Fact:
    """One thing that decides, or describes, a run.

    Attributes:
        value: plain JSON: str, int, float, bool, None, list, dict.
        severity: what a change of it means.
    """

    value: Any
    severity: Severity = "run"


RunConfig = Mapping[str, Fact]
"""Dotted names to facts, for example ``"data.0.batch_size"`` or ``"optimizer.0.lr"``."""


@dataclass(frozen=True)
class Vitals:
    """What a framework shows of a run at a boundary, for the record: live references.

    Attributes:
        parameters: those that are trained, by name.
        optimizers: torch's own.
        scale: of the loss, None where it is not scaled.
        samples: of each loader that the last batch came from, where that stands and which samples it gave; strict JSON.
        is_between: whether code of the user's, or what is due at the end of an epoch, comes before the next batch.
    """

    parameters: Mapping[str, torch.Tensor]
    optimizers: Sequence[torch.optim.Optimizer]
    scale: float | None
    samples: Sequence[Mapping[str, Any]]
    is_between: bool = False
