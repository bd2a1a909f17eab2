"""What decides a run, read off the live objects as facts: model, optimizers, schedulers, seed.

Every function is pure: it draws no random number, iterates no data, and changes nothing. Take the facts once, from
freshly configured objects, before anything is loaded and before the first step, and save those: a scheduler moves
``lr``, ``betas`` and ``momentum`` while the run goes on, and what it moved is no change of configuration.

Optimizers and schedulers must be the torch objects themselves, not a framework's wrappers around them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch.nn.parameter import is_lazy
from torch.optim.lr_scheduler import LRScheduler, OneCycleLR

from resume_core.capture.function_code import function_source, is_of_library
from resume_core.capture.function_reads import function_reads
from resume_core.capture.plain import callable_name, callable_settings, class_path, is_setting, plain
from resume_core.state import Fact

__all__ = [
    "describe_model",
    "describe_optimizers",
    "describe_schedulers",
    "seed_fact",
]

_SEED_LIMIT = 2**32  # numpy takes no larger seed, so no helper that seeds everything accepts one
_NOT_HYPERPARAMETERS = {"params", "param_names", "lr", "initial_lr"}
_MOVING = {"last_epoch", "best", "num_bad_epochs", "cooldown_counter", "mode_worse", "T_cur", "T_i", "verbose"}
_PRIVATE_SETTINGS = {"_milestones", "_anneal_func_type", "_anneal_strategy"}
_MAX_NESTING = 8


def seed_fact(env_seed: str | None, torch_seed: int) -> Fact:
    """The seed that the user chose, if anybody chose one.

    Args:
        env_seed: the environment's ``PL_GLOBAL_SEED``.
        torch_seed: ``torch.initial_seed()``. Torch starts with a larger one than any user's, so one below 2**32 was
            set by somebody.

    Returns:
        The seed as a run fact; for an unseeded run None as information, which never counts as a change.
    """
    if env_seed is not None and env_seed.strip().isdecimal():
        return Fact(int(env_seed))
    return Fact(torch_seed) if 0 <= torch_seed < _SEED_LIMIT else Fact(None, "info")


def describe_model(named_tensors: Mapping[str, torch.Tensor]) -> dict[str, Fact]:
    """Name, dtype and shape of each tensor, as ``"model.<name>": "float32[64, 3]"``.

    Args:
        named_tensors: parameters and buffers, named as in ``state_dict``; only dtype and shape are read. A value that
            is no tensor (extra state) is described by its class.
    """
    return {f"model.{name}": Fact(_form(tensor), "structure") for name, tensor in named_tensors.items()}


def _form(tensor: torch.Tensor) -> str:
    if not isinstance(tensor, torch.Tensor):
        return class_path(tensor)
    dtype = str(tensor.dtype).removeprefix("torch.")
    return f"{dtype}, not initialised" if is_lazy(tensor) else f"{dtype}{list(tensor.shape)}"


def describe_optimizers(optimizers: Iterable[torch.optim.Optimizer]) -> dict[str, Fact]:
    """Class, hyperparameters and sizes of each optimizer, as ``"optimizer.0.lr"``.

    A hyperparameter that all param groups share is one value, otherwise a list with one value a group. ``lr`` is the
    configured one: ``initial_lr`` where a scheduler has recorded it.
    """
    facts: dict[str, Fact] = {}
    for i, optimizer in enumerate(optimizers):
        prefix = f"optimizer.{i}"
        groups = getattr(optimizer, "param_groups", [])
        facts[f"{prefix}.class"] = Fact(class_path(optimizer), "structure")
        facts[f"{prefix}.num_params"] = Fact([len(group["params"]) for group in groups], "structure")
        for name, values in _hyperparameters(groups).items():
            facts[f"{prefix}.{name}"] = Fact(_shared(values))
    return facts


def _hyperparameters(groups: list[dict[str, Any]]) -> dict[str, list[Any]]:
    names = {name: None for group in groups for name in group if name not in _NOT_HYPERPARAMETERS}
    found = {"lr": [plain(group.get("initial_lr", group.get("lr"))) for group in groups]}
    return found | {str(name): [plain(group.get(name)) for group in groups] for name in names}


def _shared(values: list[Any]) -> Any:
    return values[0] if values and all(value == values[0] for value in values) else values


def describe_schedulers(schedulers: Iterable[object]) -> dict[str, Fact]:
    """Class, horizon and other settings of each learning-rate scheduler, as ``"scheduler.0.T_max"``.

    Read are the public attributes that hold plain values, except those that move (``last_epoch`` and the like), the
    arguments, defaults and closures of lambdas, the globals and attributes that they read, their source, and nested
    schedulers (``"scheduler.0.schedulers.1.T_max"``). The names of the user's own lambdas are information.
    """
    facts: dict[str, Fact] = {}
    for i, scheduler in enumerate(schedulers):
        facts |= _scheduler(scheduler, f"scheduler.{i}", depth=0)
    return facts


def _scheduler(scheduler: object, prefix: str, depth: int) -> dict[str, Fact]:
    facts = {f"{prefix}.class": Fact(class_path(scheduler))} | _cycle_shape(scheduler, prefix)
    if depth > _MAX_NESTING:
        return facts
    for name, value in getattr(scheduler, "__dict__", {}).items():
        place = f"{prefix}.{name.removeprefix('_')}"
        nested = _nested_schedulers(place, value)
        for inner_place, inner in nested.items():
            facts |= _scheduler(inner, inner_place, depth + 1)
        if not nested and _is_scheduler_setting(scheduler, name, value):
            facts |= _scheduler_setting(place, value)
    return facts


def _nested_schedulers(place: str, value: object) -> dict[str, LRScheduler]:
    if isinstance(value, LRScheduler):
        return {place: value}
    items = value if isinstance(value, (list, tuple)) else []
    return {f"{place}.{i}": item for i, item in enumerate(items) if isinstance(item, LRScheduler)}


def _is_scheduler_setting(scheduler: object, name: str, value: object) -> bool:
    if name == "base_lrs":
        return value != _initial_lrs(scheduler)  # otherwise one changed lr would be named twice
    return name in _PRIVATE_SETTINGS or not (name.startswith("_") or name in _MOVING)


def _initial_lrs(scheduler: object) -> list[Any]:
    groups = getattr(getattr(scheduler, "optimizer", None), "param_groups", [])
    return [group.get("initial_lr") for group in groups]


def _scheduler_setting(place: str, value: Any) -> dict[str, Fact]:
    if isinstance(value, Counter):  # how MultiStepLR keeps its milestones
        return {place: Fact(plain(sorted(value.elements())))}
    if is_setting(value):
        return {place: Fact(plain(value))}
    functions = value if isinstance(value, (list, tuple)) else [value]
    if not all(callable(item) or item is None for item in functions):
        return {}
    names = [item and callable_name(item) for item in functions]
    # the user's own may have another name and be the same; their source tells
    facts = {place: Fact(names, "run" if all(map(is_of_library, filter(None, functions))) else "info")}
    for i, item in enumerate(functions):
        source = function_source(item)
        told = {} if source is None else {"source": plain(source)}
        told |= {**function_reads(item), **callable_settings(item)}
        facts |= {f"{place}.{i}.{name}": Fact(setting) for name, setting in told.items()}
    return facts


def _cycle_shape(scheduler: object, prefix: str) -> dict[str, Fact]:
    """Where the phases of a OneCycleLR end, as fractions: in steps they would only repeat ``total_steps``."""
    phases = getattr(scheduler, "_schedule_phases", None)
    if not isinstance(scheduler, OneCycleLR) or not phases:
        return {}
    ends = [round((phase["end_step"] + 1) / scheduler.total_steps, 9) for phase in phases]
    return {f"{prefix}.phase_ends": Fact(plain(ends))}
