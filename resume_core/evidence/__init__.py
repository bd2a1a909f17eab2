"""What shows that a resumed run is the one that was interrupted, and that a run is still healthy."""

from resume_core.evidence.evidence import Evidence
from resume_core.evidence.observer import Observer
from resume_core.evidence.watch import going_back

__all__ = ["Evidence", "Observer", "going_back"]
