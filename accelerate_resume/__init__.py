"""Exact resume for Hugging Face Accelerate, and for the Trainer on top of it: start the same script again."""

from typing import TYPE_CHECKING, Any

from accelerate_resume.plugin import ResumePlugin
from resume_core.policy import Changes, Check, Keep, Preemption, SaveEvery, Watch

if TYPE_CHECKING:
    from accelerate_resume.trainer import TrainerResumeCallback

__all__ = ["ResumePlugin", "TrainerResumeCallback", "SaveEvery", "Keep", "Changes", "Preemption", "Check", "Watch"]


def __getattr__(name: str) -> Any:
    """The callback, which needs transformers: only who asks for it must have that."""
    if name != "TrainerResumeCallback":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from accelerate_resume.trainer import TrainerResumeCallback

    return TrainerResumeCallback
