"""What a plugin implements so that a `Session` can decide for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch

from resume_core.ranks import Ranks
from resume_core.state import Fact, State, Vitals

__all__ = ["Framework"]


class Framework(Protocol):
    """One training framework, seen from the session. It captures and applies; it holds no decision."""

    @property
    def ranks(self) -> Ranks:
        """The processes that train together, one object for the whole run."""
        ...

    @property
    def weights_bytes(self) -> int:
        """Size of parameters and buffers, known before the first step."""
        ...

    @property
    def limits(self) -> Mapping[str, float]:
        """Where training ends by itself, by the names that users know: ``max_epochs``, ``max_steps``, ``max_time``."""
        ...

    @property
    def metrics(self) -> Mapping[str, float]:
        """Metrics by the names that users know, each as it was last computed; may be NaN or infinite."""
        ...

    def prepare(self, key: int) -> None:
        """The run's key is known: data loaders may be asked for, in a random stream derived from it."""
        ...

    def preamble(self) -> Mapping[str, Any]:
        """Plain JSON for the next attempt, which reads it before anything is compared or restored."""
        ...

    def describe(self) -> dict[str, Fact]:
        """What decides this run, taken from freshly configured objects; called after `prepare`, before `apply`."""
        ...

    def capture(self) -> State:
        """The state at a boundary: live references, no copies. Draws no random numbers."""
        ...

    def live_weights(self) -> Mapping[str, torch.Tensor]:
        """Live tensors by their names in ``State.model``, which a checkpoint may be read straight into.

        Only such that `apply` would overwrite with the saved ones and nothing else: where a hook wants to see them
        first, they are left out. Called after `describe`.
        """
        ...

    def parts(self, state: State | None) -> Mapping[str, Any]:
        """What must be the same in a checkpoint and in the live objects when the first batch is trained on.

        Args:
            state: that was read; None for the live objects.

        Returns:
            Of the one as of the other ``weights``, ``optimizers``, ``schedulers`` and ``scaler``, as far as there are.
        """
        ...

    def vitals(self) -> Vitals:
        """What the run shows of itself; asked at any boundary, and before training begins."""
        ...

    def apply(self, state: State) -> None:
        """Put ``state`` into the live objects, as far as they exist, and the rest when they do; RNG last."""
        ...
