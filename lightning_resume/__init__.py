"""Exact resume for PyTorch Lightning: add `ResumeCallback` to a ``Trainer`` and start the same script again."""

from lightning_resume.callback import ResumeCallback
from resume_core.policy import Changes, Keep, SaveEvery

__all__ = ["ResumeCallback", "SaveEvery", "Keep", "Changes"]
