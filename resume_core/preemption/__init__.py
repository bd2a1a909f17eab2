"""What announces the end of the machine: noted here, acted on at a boundary."""

from resume_core.preemption.notices import NoticeWatch
from resume_core.preemption.signals import SignalWatch
from resume_core.preemption.slurm import job_id, requeue, seconds_left

__all__ = ["NoticeWatch", "SignalWatch", "job_id", "requeue", "seconds_left"]
