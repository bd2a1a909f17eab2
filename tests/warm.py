"""Imported when everything else is: what each test and each forked process would do anew is done once.

Accelerate and the Trainer collect garbage when they begin. That looks through all that is imported, half a million
objects, takes longer than a small training, and makes a forked process copy the memory that they lie in.
"""

from __future__ import annotations

import gc

from resume_core.capture.provenance import package_versions

package_versions()
gc.collect()
gc.freeze()
