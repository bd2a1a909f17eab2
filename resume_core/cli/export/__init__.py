"""``exact-resume export``: a checkpoint in the format of its framework, or its weights alone."""

from resume_core.cli.export.run import Exported, Request, export

__all__ = ["Exported", "Request", "export"]
