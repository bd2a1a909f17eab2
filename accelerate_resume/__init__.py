"""Exact resume for Hugging Face Accelerate: attach a `ResumePlugin` and start the same script again."""

from accelerate_resume.plugin import ResumePlugin
from resume_core.policy import Changes, Keep, SaveEvery

__all__ = ["ResumePlugin", "SaveEvery", "Keep", "Changes"]
