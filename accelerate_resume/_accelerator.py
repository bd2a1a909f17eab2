"""Every touch of Accelerate's internals; what is needed of them is probed at the start (_probe.py).

Internals used (Accelerate 1.15):

- ``Accelerator``: the lists ``_models``, ``_optimizers``, ``_schedulers``, ``_dataloaders``, ``_custom_objects``;
  ``step``, ``scaler``, ``gradient_state``, ``dataloader_config``. Shadowed on the instance are ``backward``,
  ``clip_grad_norm_``, ``clip_grad_value_``, ``skip_first_batches``, and what ``prepare`` calls there:
  ``prepare_data_loader``, ``prepare_model`` and ``prepare_optimizer``.
- ``GradientState``: ``sync_gradients``, ``num_steps``, ``plugin_kwargs``, ``dataloader_references``,
  ``_remove_dataloader``.
- A prepared loader (``DataLoaderShard``, ``DataLoaderDispatcher``): ``base_dataloader``, ``iteration``,
  ``end_of_dataloader``, ``remainder``, ``__iter__``, and for a dispatcher ``_fetch_batches`` and ``split_batches``. Its
  ``__iter__`` takes the next batch before it gives the one before away, calls ``set_epoch(iteration)`` as it begins,
  and counts ``iteration`` only when it is asked for a batch after the last. With ``use_stateful_dataloader``,
  ``base_dataloader`` is torchdata's ``StatefulDataLoader``, whose ``state_dict`` makes it begin (``_iterator``).
- ``SeedableRandomSampler``: ``initial_seed``.
- ``AcceleratedOptimizer``: ``optimizer``, ``_is_overflow``. ``AcceleratedScheduler``: ``scheduler``.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from accelerate.data_loader import DataLoaderDispatcher, SeedableRandomSampler
from accelerate.optimizer import AcceleratedOptimizer
from accelerate.utils import extract_model_from_parallel

from resume_core.capture.optimizer import place_optimizer_state
from resume_core.capture.order import sampler_chain
from resume_core.capture.plain import plain
from resume_core.ranks import Ranks
from resume_core.state import Fact

__all__ = ["Accelerated", "PreparedLoader", "no_early_state", "own_optimizer", "small_part"]

_MARK = "_exact_resume"
_ACCUMULATION = ("num_steps", "adjust_scheduler", "sync_with_dataloader")
_LOADING = ("split_batches", "dispatch_batches", "even_batches", "use_seedable_sampler", "data_seed")


@contextlib.contextmanager
def no_early_state() -> Iterator[None]:
    """A block in which stateful loaders are made without being started.

    ``prepare`` asks each for its state at once, which starts its workers, and these read in an order that is not the
    run's. The empty state stands for the beginning of a loader, as torchdata takes it.
    """
    try:
        from torchdata.stateful_dataloader import StatefulDataLoader
    except ImportError:
        yield
        return
    plain = StatefulDataLoader.state_dict
    StatefulDataLoader.state_dict = lambda loader: {} if loader._iterator is None else plain(loader)
    try:
        yield
    finally:
        StatefulDataLoader.state_dict = plain


class PreparedLoader:
    """What ``prepare`` made of a loader, taken over in place: its ``__iter__`` is asked of ``iterate`` from now on.

    Args:
        loader: a ``DataLoaderShard`` or ``DataLoaderDispatcher``.
        iterate: given a function that makes the plain iterator, makes the one that users see.
    """

    def __init__(self, loader: Any, iterate: Callable[[Callable[[], Iterator[Any]]], Iterator[Any]]) -> None:
        self.loader = loader
        self._iterate = iterate
        vars(loader)[_MARK] = self
        cls = type(loader)
        members = {"__iter__": _iterate, "__module__": cls.__module__, "__qualname__": cls.__qualname__, "_plain": cls}
        _set_class(loader, type(cls.__name__, (cls,), members))

    def release(self) -> None:
        """Give the loader back as it was."""
        if vars(self.loader).pop(_MARK, None) is self:
            _set_class(self.loader, vars(type(self.loader))["_plain"])

    @staticmethod
    def of(loader: Any) -> PreparedLoader | None:
        """The one that ``loader`` was given to, if any."""
        return getattr(loader, "__dict__", {}).get(_MARK)

    @property
    def base(self) -> Any:
        """The loader of torch inside."""
        return self.loader.base_dataloader

    @property
    def is_at_end(self) -> bool:
        """Whether the last batch of the pass was given away."""
        return bool(self.loader.end_of_dataloader)

    @property
    def is_dispatched(self) -> bool:
        """Whether rank 0 reads for all."""
        return isinstance(self.loader, DataLoaderDispatcher)

    def num_read(self, num_batches: int, num_ranks: int) -> int:
        """Batches of the loader inside that ``num_batches`` of this one are made of."""
        return num_batches * num_ranks if self.is_dispatched and not self.loader.split_batches else num_batches

    def finish(self) -> None:
        """What the plain iterator does when it is asked for a batch after the last."""
        self.loader.iteration += 1
        self.loader.gradient_state._remove_dataloader(self.loader)

    def _seedable(self) -> list[Any]:
        sampler = self.base.sampler if self.base.batch_sampler is None else self.base.batch_sampler
        return [known for known in sampler_chain(sampler) if isinstance(known, SeedableRandomSampler)]

    @property
    def seeds(self) -> list[int]:
        """What decides the order with ``use_seedable_sampler``: the global seed unless there is a ``data_seed``."""
        return [int(sampler.initial_seed) for sampler in self._seedable()]

    @seeds.setter
    def seeds(self, values: Sequence[int]) -> None:
        for sampler, value in zip(self._seedable(), values, strict=False):
            sampler.initial_seed = value

    def fetch_again(self, fetch: Callable[[], Any]) -> Any:
        """The first batch in this process of a pass that began before it: restored marks say that it is iterated."""
        state = self.loader.gradient_state
        before = state.dataloader_references
        batch = fetch()
        if any(known is self.loader for known in before):
            state.dataloader_references = before
        return batch

    def capture(self) -> dict[str, Any]:
        """What it counts and has seen, as plain values."""
        loader = self.loader
        return {
            "iteration": int(loader.iteration),
            "end_of_dataloader": bool(loader.end_of_dataloader),
            "remainder": int(loader.remainder),
        }

    def apply(self, saved: Mapping[str, Any]) -> None:
        """Put back what `capture` saw."""
        for name, value in saved.items():
            setattr(self.loader, name, value)


def _set_class(loader: Any, cls: type) -> None:
    """``__class__`` of these loaders is a property, so it is set as `object` does it."""
    vars(object)["__class__"].__set__(loader, cls)


def _iterate(loader: Any) -> Iterator[Any]:
    return vars(loader)[_MARK]._iterate(lambda: iter(type(loader)._plain.__iter__(loader)))  # type: ignore[no-any-return]


class Accelerated:
    """An ``Accelerator`` and what it has prepared.

    Args:
        accelerator: to which a plugin is attached.
    """

    def __init__(self, accelerator: Any) -> None:
        self.accelerator = accelerator
        self._shadowed: list[str] = []

    def around(self, name: str, wrapper: Callable[..., Any]) -> None:
        """Shadow a method on the instance: ``wrapper`` is called with the plain one and its arguments."""
        plain_method = getattr(self.accelerator, name)

        def shadow(*args: Any, **kwargs: Any) -> Any:
            return wrapper(plain_method, *args, **kwargs)

        vars(self.accelerator)[name] = shadow
        self._shadowed.append(name)

    def release(self) -> None:
        """Give the accelerator its methods back."""
        while self._shadowed:
            vars(self.accelerator).pop(self._shadowed.pop(), None)

    @property
    def prepared(self) -> list[Any]:
        """All that was prepared but loaders, which may come and go."""
        accelerator = self.accelerator
        return [*accelerator._models, *accelerator._optimizers, *accelerator._schedulers]

    def ranks(self) -> Ranks:
        """The processes that train together; each call gives a meeting place of its own, the same for all."""
        size = int(self.accelerator.num_processes)
        return Ranks() if size == 1 else Ranks.of_torch(int(self.accelerator.process_index), size)

    # ---- what was prepared

    @property
    def models(self) -> dict[str, torch.nn.Module]:
        """The user's own modules, out of what they were wrapped in; a single one has the empty name."""
        found = [extract_model_from_parallel(m, keep_torch_compile=False) for m in self.accelerator._models]
        return {"": found[0]} if len(found) == 1 else {f"{place}.": module for place, module in enumerate(found)}

    @property
    def model_names(self) -> list[list[str]]:
        """Of each model the prefix of its names in a checkpoint, and what ``save_state`` writes in place of that."""
        compiled = ["_orig_mod." if hasattr(model, "_orig_mod") else "" for model in self.accelerator._models]
        return [[prefix, own] for prefix, own in zip(self.models, compiled, strict=True)]

    @property
    def optimizers(self) -> list[torch.optim.Optimizer]:
        """Torch's own."""
        return [own_optimizer(optimizer) for optimizer in self.accelerator._optimizers]

    @property
    def optimizers_and_own(self) -> list[Any]:
        """Both what it made of optimizers and torch's own: others may hold either."""
        return [*self.accelerator._optimizers, *self.optimizers]

    @property
    def schedulers(self) -> list[Any]:
        """Torch's own."""
        return [getattr(scheduler, "scheduler", scheduler) for scheduler in self.accelerator._schedulers]

    @property
    def scale(self) -> float | None:
        """Of the loss, None where it is not scaled."""
        scaler = self.accelerator.scaler
        return None if scaler is None else float(scaler.get_scale())

    @property
    def registered(self) -> list[Any]:
        """What was given to ``register_for_checkpointing``."""
        return list(self.accelerator._custom_objects)

    @property
    def counts(self) -> dict[str, int]:
        """How many of each kind there are; loaders may come and go."""
        kinds = {"model": "_models", "optimizer": "_optimizers", "scheduler": "_schedulers"}
        kinds["object of register_for_checkpointing"] = "_custom_objects"
        return {kind: len(getattr(self.accelerator, name)) for kind, name in kinds.items()}

    @property
    def iterates_unknown(self) -> bool:
        """Whether the loader that it takes to be gone over is not taken over."""
        active = self.accelerator.gradient_state.active_dataloader
        return active is not None and PreparedLoader.of(active) is None

    @property
    def in_window(self) -> bool:
        """Whether gradients wait for more batches."""
        return not self.accelerator.gradient_state.sync_gradients

    @property
    def num_windows(self) -> int:
        """Batches that it accumulates before a step."""
        return int(self.accelerator.gradient_accumulation_steps)

    @property
    def splits_batches(self) -> bool:
        """Whether a loader's batch size is that of all ranks together."""
        return bool(self.accelerator.split_batches)

    def describe(self) -> dict[str, Fact]:
        """Its arguments that decide a run."""
        accelerator, config = self.accelerator, self.accelerator.dataloader_config
        facts = {
            "precision": accelerator.mixed_precision,
            "scheduler_steps_with_optimizer": accelerator.step_scheduler_with_optimizer,
        }
        kwargs = accelerator.gradient_state.plugin_kwargs
        defaults = {"num_steps": 1, "adjust_scheduler": False, "sync_with_dataloader": True}
        facts |= {f"accumulation.{name}": kwargs.get(name, defaults[name]) for name in _ACCUMULATION}
        facts |= {f"loading.{name}": getattr(config, name) for name in _LOADING}
        return {name: Fact(plain(value)) for name, value in facts.items()}

    # ---- state

    def capture_training(self) -> dict[str, Any]:
        """All that it counts and has prepared, but models and loaders: live references."""
        accelerator = self.accelerator
        return {
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "overflows": [bool(optimizer._is_overflow) for optimizer in accelerator._optimizers],
            "schedulers": [scheduler.state_dict() for scheduler in self.schedulers],
            "scaler": None if accelerator.scaler is None else accelerator.scaler.state_dict(),
            "registered": [registered.state_dict() for registered in self.registered],
            "step": int(accelerator.step),
        }

    def apply_training(self, saved: Mapping[str, Any]) -> None:
        """Put back what `capture_training` saw."""
        for optimizer, state in zip(self.optimizers, saved["optimizers"], strict=True):
            optimizer.load_state_dict(state)
            place_optimizer_state(optimizer, state)
        for registered, state in zip(self.registered, saved["registered"], strict=True):
            registered.load_state_dict(state)
        self.apply_small(small_part(saved))

    def apply_small(self, saved: Mapping[str, Any]) -> None:
        """Once more what code may have changed that runs again before the first batch; see `small_part`."""
        accelerator = self.accelerator
        for optimizer, groups in zip(self.optimizers, saved["groups"], strict=True):
            for group, values in zip(optimizer.param_groups, groups, strict=True):
                group.update(copy.deepcopy(values))
        for optimizer, overflow in zip(accelerator._optimizers, saved["overflows"], strict=True):
            optimizer._is_overflow = overflow
        for scheduler, state in zip(self.schedulers, saved["schedulers"], strict=True):
            scheduler.load_state_dict(copy.deepcopy(state))
        if accelerator.scaler is not None and saved["scaler"] is not None:
            accelerator.scaler.load_state_dict(saved["scaler"])
        accelerator.step = saved["step"]

    def capture_marks(self, loaders: Mapping[int, PreparedLoader]) -> dict[str, Any]:
        """Marks of the accumulation, and which of ``loaders`` are being iterated, or were left by ``break``."""
        state = self.accelerator.gradient_state
        slots = {id(known.loader): slot for slot, known in loaders.items()}
        references = [slots.get(id(loader), -1) for loader in state.dataloader_references if loader is not None]
        return {"sync_gradients": bool(state.sync_gradients), "iterated": references}

    def apply_marks(self, saved: Mapping[str, Any], loaders: Mapping[int, PreparedLoader]) -> None:
        """Put back what `capture_marks` saw; loaders that are no longer there are left out."""
        state = self.accelerator.gradient_state
        state._set_sync_gradients(saved["sync_gradients"])
        known = [loaders[slot].loader for slot in saved["iterated"] if slot in loaders]
        state.dataloader_references = [None, *known]


def own_optimizer(optimizer: Any) -> Any:
    """The optimizer of torch inside."""
    while isinstance(optimizer, AcceleratedOptimizer):
        optimizer = optimizer.optimizer
    return optimizer


def small_part(saved: Mapping[str, Any]) -> dict[str, Any]:
    """Of what `Accelerated.capture_training` saw, what costs nothing to keep and to apply again."""
    return {
        "groups": [
            [{name: value for name, value in group.items() if name != "params"} for group in state["param_groups"]]
            for state in saved["optimizers"]
        ],
        **{name: saved[name] for name in ("overflows", "schedulers", "scaler", "step")},
    }
