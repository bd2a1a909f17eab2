"""The bucket layout of DistributedDataParallel.

DDP begins with one layout of its gradient buckets, sees in the first synchronised backward in which
order gradients become ready, and lays the buckets out anew before the next forward, once
(``Reducer::rebuild_buckets`` in torch/csrc/distributed/c10d/reducer.cpp). With three ranks or more the layout decides
how a sum over ranks is rounded. A new process would begin with the first layout again, so a resumed one is given that
of the run. torch logs the layout only now and then; until it does, it is computed from the order in which gradients
became ready, as the reducer will.

Internals used (torch 2.13): ``DistributedDataParallel._build_params_for_reducer``, ``_get_ddp_logging_data`` and
``_bucket_config``, ``torch.distributed._compute_bucket_assignment_by_size``; for a model that stays the object that it
is, ``_ddp_init_helper`` and what ``__setstate__`` does around it.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed
from torch.nn.parallel import DistributedDataParallel

__all__ = ["BucketLayout", "Layout", "lay_out_anew", "missing_for_buckets"]

dist: Any = torch.distributed  # what is used of it here has no types
Layout = list[list[int]]
"""Indices of parameters, bucket by bucket."""

_LOGGED = "rebuilt_per_bucket_param_indices"


class BucketLayout:
    """The layout that DDP's buckets have, or will have before the next forward.

    Args:
        model: gives the model as it is wrapped now. Without DDP there is no layout and nothing happens.
        anew: wraps it anew, or lays the buckets of the same wrapper out anew.
    """

    def __init__(self, model: Callable[[], Any], anew: Callable[[], None]) -> None:
        self._model, self._anew = model, anew
        self._given: Layout | None = None
        self._ready: list[int] = []
        self._num_parameters = 0
        self._hooks: list[Any] = []

    @property
    def _ddp(self) -> Any:
        model = self._model()
        return model if isinstance(model, DistributedDataParallel) else None

    def watch(self) -> None:
        """Note the order in which gradients become ready, in the first backward that ranks synchronise."""
        ddp = self._ddp
        if ddp is None or ddp.find_unused_parameters or self._hooks:  # with that option nothing is laid out anew
            return
        parameters, _ = ddp._build_params_for_reducer()
        self._num_parameters = len(parameters)
        for index, parameter in enumerate(parameters):
            self._hooks.append(parameter.register_post_accumulate_grad_hook(self._note(ddp, index)))

    def _note(self, ddp: Any, index: int) -> Any:
        def note(_: torch.Tensor) -> None:
            if ddp.require_backward_grad_sync:
                self._ready.append(index)

        return note

    def state(self) -> Layout | None:
        """The layout, None while DDP still has the one that it begins with."""
        ddp = self._ddp
        if ddp is None:
            return None
        if len(self._ready) >= self._num_parameters:
            self._unhook()
        logged = ddp._get_ddp_logging_data().get(_LOGGED)
        if logged:
            return [[int(index) for index in bucket.split()] for bucket in logged.split(",")]
        return self._computed(ddp) if self._ready else self._given

    def _computed(self, ddp: Any) -> Layout:
        parameters, _ = ddp._build_params_for_reducer()
        order = list(dict.fromkeys(self._ready))
        found, _ = dist._compute_bucket_assignment_by_size([parameters[i] for i in order], _limits(ddp), [], order)
        return [list(bucket) for bucket in found]

    def apply(self, layout: Layout | None) -> None:
        """Let the buckets lie as they did."""
        if layout is None or self._ddp is None:
            return
        self.release()
        with _laid_out(layout):
            self._anew()
        self._given = layout

    def _unhook(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def release(self) -> None:
        """Watch no longer."""
        self._unhook()
        self._ready.clear()


def lay_out_anew(ddp: Any) -> None:
    """Let ``ddp`` make its reducer again, as it does when it is unpickled."""
    ddp.reducer = ddp.logger = None
    gc.collect()  # the reducer takes its hooks off the parameters when it goes
    parameters, sparse = ddp._build_params_for_reducer()
    ddp._ddp_init_helper(parameters, sparse, ddp._build_debug_param_to_name_mapping(parameters), ddp.static_graph)
    if ddp.static_graph:
        ddp.reducer._set_static_graph()
        ddp.logger._set_static_graph()


_NEEDED = ("_build_params_for_reducer", "_get_ddp_logging_data")


def missing_for_buckets(*needed: str) -> list[str]:
    """What this module relies on and is not in this version of torch, each with that version.

    Args:
        needed: further names that the plugin needs of `DistributedDataParallel`.
    """
    missing = [
        f"DistributedDataParallel.{name}" for name in (*_NEEDED, *needed) if not hasattr(DistributedDataParallel, name)
    ]
    own = "_compute_bucket_assignment_by_size"
    missing += [] if hasattr(dist, own) else [f"torch.distributed.{own}"]
    return [f"{name} (torch {torch.__version__})" for name in missing]


def _limits(ddp: Any) -> list[int]:
    """Of the buckets' sizes in bytes, when they are laid out anew: the user's own, or what the reducer takes then."""
    own = list(getattr(getattr(ddp, "_bucket_config", None), "per_bucket_bytes_caps", ()))
    first = dist._DEFAULT_FIRST_BUCKET_BYTES if ddp.bucket_bytes_cap_default else ddp.bucket_bytes_cap
    return own or [first, ddp.bucket_bytes_cap]


@contextlib.contextmanager
def _laid_out(layout: Layout) -> Iterator[None]:
    plain = dist._compute_bucket_assignment_by_size

    def assigned(*args: Any, **kwargs: Any) -> Any:
        # DDP hands them to its reducer in reverse, and limits that matter to it only for what is laid out anew
        _, limits = plain(*args, **kwargs)
        return [*reversed(layout)], [limits[0]] * len(layout)

    dist._compute_bucket_assignment_by_size = assigned
    try:
        yield
    finally:
        dist._compute_bucket_assignment_by_size = plain
