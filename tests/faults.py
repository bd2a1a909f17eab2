"""Faults of a restore, planted into a process that is about to go on with a run: what a check has to find.

Each strikes after the restore and before the first batch, as a plugin with that fault would leave the run, or in the
restore itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from resume_core.capture import loader
from resume_core.evidence import Evidence, Observer

_SAMPLES = loader._SAMPLES


def plant(name: str) -> None:
    FAULTS[name]()


def _before_the_first_batch(strike: Callable[[Any], None]) -> None:
    """``strike`` is given the framework that the evidence looks at."""
    plain, found = Observer.before_first, []
    plain_compare = Evidence.compare_with

    def compare_with(self: Evidence, saved: Any, live: Any) -> None:
        plain_compare(self, saved, live)
        found.append(self._vitals.__self__)  # type: ignore[attr-defined]

    def before_first(self: Observer) -> None:
        while found:
            strike(found.pop())
        plain(self)

    Evidence.compare_with, Observer.before_first = compare_with, before_first  # type: ignore[method-assign]


def _drop_optimizer_state(framework: Any) -> None:
    for optimizer in framework.vitals().optimizers:
        optimizer.state.clear()


def _reset_scheduler(framework: Any) -> None:
    for scheduler in _schedulers(framework):
        scheduler.last_epoch = 0
        scheduler._step_count = 1
        for group, rate in zip(scheduler.optimizer.param_groups, scheduler.base_lrs, strict=True):
            group["lr"] = rate


def _schedulers(framework: Any) -> list[Any]:
    if hasattr(framework, "trainer"):
        found = [config.scheduler for config in framework.trainer.lr_scheduler_configs]
    elif hasattr(framework, "hf"):
        found = [framework.hf.trainer.lr_scheduler]
    else:
        found = framework.accelerated.schedulers
    return [scheduler for scheduler in found if hasattr(scheduler, "base_lrs")]


def _change_weight(framework: Any) -> None:
    weight = max(framework.vitals().parameters.values(), key=torch.Tensor.numel)
    with torch.no_grad():
        weight.view(-1)[1] += 1e-3


def _reset_scaler(framework: Any) -> None:
    scaler = framework.scaler if hasattr(framework, "trainer") else framework.accelerated.accelerator.scaler
    scaler.load_state_dict(torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3).state_dict())


def _shift_samples() -> None:
    plain = loader.ResumableLoader.seek

    def seek(self: Any, state: Any) -> None:
        plain(self, {**state, "position": state["position"] + 1})

    loader.ResumableLoader.seek = seek  # type: ignore[method-assign]


def _seed_augmentation_otherwise() -> None:
    plain = loader.ResumableLoader._seed

    def seed(self: Any, use: int, at: Any) -> int:
        return plain(self, use, at) + (use == _SAMPLES)

    loader.ResumableLoader._seed = seed  # type: ignore[method-assign]


def _apply_rng_as(change: Callable[[Callable[[Any], None], Any], None]) -> None:
    import accelerate_resume._framework as of_accelerate
    import lightning_resume._framework as of_lightning

    for module in (of_accelerate, of_lightning):
        plain = module.apply_rng
        module.apply_rng = lambda state, plain=plain: change(plain, state)  # type: ignore[attr-defined]


def _apply_rng_of_another_rank(plain: Callable[[Any], None], state: Any) -> None:
    states = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(states, state)
    plain(states[torch.distributed.get_rank() - 1])


def _spoil_weights() -> None:
    """No fault of a restore: behind the fourth batch of this process the weights are no numbers any more."""
    plain, seen = Observer.batch, []

    def batch(self: Observer, one: Any) -> None:
        seen.append(one)
        if len(seen) == 4:
            import gc

            for parameter in [p for p in gc.get_objects() if isinstance(p, torch.nn.Parameter)]:
                parameter.data.fill_(float("nan"))
        plain(self, one)

    Observer.batch = batch  # type: ignore[method-assign]


def _draw_apart() -> None:
    """No fault: ranks that were seeded alike draw different numbers from here on."""
    plain, has_drawn = Observer.batch, []

    def batch(self: Observer, one: Any) -> None:
        if not has_drawn:
            has_drawn.append(torch.rand(1 + torch.distributed.get_rank()))
        plain(self, one)

    Observer.batch = batch  # type: ignore[method-assign]


FAULTS: dict[str, Callable[[], None]] = {
    "optimizer state dropped": lambda: _before_the_first_batch(_drop_optimizer_state),
    "scheduler reset": lambda: _before_the_first_batch(_reset_scheduler),
    "one weight changed": lambda: _before_the_first_batch(_change_weight),
    "scaler reset": lambda: _before_the_first_batch(_reset_scaler),
    "samples shifted": _shift_samples,
    "augmentation seeded otherwise": _seed_augmentation_otherwise,
    "generators not restored": lambda: _apply_rng_as(lambda plain, state: None),
    "ranks draw apart": _draw_apart,
    "weights spoilt": _spoil_weights,
    "generators of another rank": lambda: _apply_rng_as(_apply_rng_of_another_rank),
}
