"""``exact-resume demo``: one training in peace, the same training killed again and again, and a comparison."""

from resume_core.cli.demo.run import Settings, run_demo

__all__ = ["Settings", "run_demo"]
