"""Several ranks under Lightning: how they agree, and what makes the buckets of DistributedDataParallel lie as they did.

Internals used (Lightning 2.6): of ``DDPStrategy`` ``configure_ddp`` and ``model``.
"""

from __future__ import annotations

import gc
from typing import Any

from resume_core.capture.buckets import BucketLayout
from resume_core.ranks import Ranks

__all__ = ["bucket_layout", "ranks_of"]


def ranks_of(strategy: Any) -> Ranks:
    """The ranks of a strategy whose processes have found each other."""
    size = strategy.world_size
    return Ranks() if size == 1 else Ranks.of_torch(strategy.global_rank, size)


def bucket_layout(strategy: Any) -> BucketLayout:
    """That of the model of ``strategy``, which is wrapped anew to change it."""

    def anew() -> None:
        strategy.model = strategy.model.module
        gc.collect()  # the reducer takes its hooks off the parameters when it goes
        strategy.configure_ddp()

    return BucketLayout(lambda: strategy.model, anew)
