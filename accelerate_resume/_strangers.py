"""Optimizers that a script trains with and does not give to the Accelerator: found, so that they can be named.

Used is torch's hook behind the step of any optimizer, as nobody else knows of them.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from accelerate_resume._accelerator import own_optimizer
from accelerate_resume._framework import AcceleratorFramework

__all__ = ["tell_of_strangers"]


def tell_of_strangers(framework: AcceleratorFramework) -> Any:
    """Tell of each optimizer that moves what the run saves and is not saved itself, at its first step.

    Returns:
        Whose ``remove()`` ends that.
    """
    found, looked_at = weakref.ref(framework), set[int]()  # the hook is torch's own and outlives the run

    def stepped(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        run = None if id(optimizer) in looked_at else found()
        if run is None or not run.tracker.is_running:
            return
        looked_at.add(id(optimizer))
        saved = [*run.accelerated.optimizers, *run.accelerated.registered, *run.tracked.values()]
        mine = {id(parameter) for module in run.modules.values() for parameter in module.parameters()}
        moves = any(id(parameter) in mine for group in optimizer.param_groups for parameter in group["params"])
        if moves and not any(own_optimizer(known) is optimizer for known in saved):
            run.script.tell(
                f"a {type(optimizer).__name__} trains a prepared model and is not saved, so that a resume begins with "
                "it anew: give it to accelerator.prepare(), or to resume.track(name=optimizer)"
            )

    return register_optimizer_step_post_hook(stepped)
