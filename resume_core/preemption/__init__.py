"""What announces the end of the machine: noted here, acted on at a boundary."""

from resume_core.preemption.signals import SignalWatch

__all__ = ["SignalWatch"]
