"""The frameworks that the demo can train with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["FRAMEWORKS", "Framework"]

_PLOTS = {"matplotlib": "matplotlib"}
_DIGITS = {"sklearn": "scikit-learn", **_PLOTS}


@dataclass(frozen=True)
class Framework:
    """A training, and the words that the demo tells of it with.

    Attributes:
        name: on the command line.
        module: that is started, see `resume_core.cli.demo.trainings`.
        title: of the framework.
        plugin: what is added to it.
        data: what is trained on.
        needs: modules that must be there, each with the package that has it.
        lacks: what the framework's own checkpoints lack, to explain a difference without the plugin.
    """

    name: str
    module: str
    title: str
    plugin: str
    data: str
    needs: Mapping[str, str]
    lacks: str

    def described(self, *, plugin: bool) -> str:
        """What trains, for headings."""
        return f"{self.title} with {self.plugin}" if plugin else f"stock {self.title}"


_TRAININGS = "resume_core.cli.demo.trainings"

FRAMEWORKS: Mapping[str, Framework] = {
    found.name: found
    for found in (
        Framework(
            name="lightning",
            module=f"{_TRAININGS}.lightning",
            title="Lightning",
            plugin="ResumeCallback",
            data="Handwritten digits",
            needs={"lightning": "lightning", **_DIGITS},
            lacks="neither the place in the shuffled epoch nor the random state",
        ),
        Framework(
            name="accelerate",
            module=f"{_TRAININGS}.accelerate",
            title="Accelerate",
            plugin="ResumePlugin",
            data="Handwritten digits",
            needs={"accelerate": "accelerate", **_DIGITS},
            lacks="neither the place in the shuffled epoch nor the random state of the loader's workers",
        ),
        Framework(
            name="trainer",
            module=f"{_TRAININGS}.trainer",
            title="transformers.Trainer",
            plugin="TrainerResumeCallback",
            data="Help texts of Python",
            needs={"transformers": "transformers", **_PLOTS},
            lacks="not the random state of the workers that augment the data",
        ),
    )
}
"""By name."""
