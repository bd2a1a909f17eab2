"""Exact resume for PyTorch Lightning: add `ResumeCallback` to a ``Trainer`` and start the same script again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lightning_resume.callback import ResumeCallback
    from resume_core.policy import Changes, Check, Keep, Preemption, SaveEvery, Watch

__all__ = ["ResumeCallback", "SaveEvery", "Keep", "Changes", "Preemption", "Check", "Watch"]


def __getattr__(name: str) -> Any:
    # when first asked for: each Trainer imports the entry point, and nothing more while that is switched off
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "ResumeCallback":
        from lightning_resume import callback as home
    else:
        from resume_core import policy as home  # type: ignore[no-redef]
    return getattr(home, name)
