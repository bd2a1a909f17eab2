"""An Accelerator's run as a `resume_core.framework.Framework`: what is captured and applied, and when.

What a checkpoint holds is applied in two parts. As soon as it is read, all of it that user code can look at. And on
*arrival*, when the script is back at the moment at which it was saved, what the code in between may have changed, the
random generators last: the code of an epoch above its inner loop runs again, and must leave no trace.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import torch

from accelerate_resume._accelerator import Accelerated, PreparedLoader, no_early_state, own_optimizer, small_part
from accelerate_resume._buckets import Buckets
from accelerate_resume._counters import Counters, apply_counters, capture_counters, numbers
from accelerate_resume._described import described, note_described
from accelerate_resume._description import describe
from accelerate_resume._folders import apply_left_out, capture_left_out
from accelerate_resume._gradients import Gradients
from accelerate_resume._modules import Modules
from accelerate_resume._notes import Advice, Notes
from accelerate_resume._passes import TrackedLoader
from accelerate_resume._pauses import EPOCH_END, EVALUATION, Pauses
from accelerate_resume._prepared import Prepared
from accelerate_resume._script import ScriptTracker
from accelerate_resume._tracker import Tracker
from resume_core.capture.dataset_attributes import names_in_state_hooks
from resume_core.capture.generators import GENERATORS, apply_generators, capture_generators, find_generators
from resume_core.capture.global_generators import running_code
from resume_core.capture.gradients import apply_gradients, capture_gradients
from resume_core.capture.modules import apply_modules, capture_modules, refilled
from resume_core.capture.param_groups import apply_groups, capture_groups, group_sizes
from resume_core.capture.rng import apply_rng, capture_rng
from resume_core.capture.weights import size_bytes
from resume_core.evidence import Observer
from resume_core.state import Ahead, Fact, Progress, State, Vitals

__all__ = ["AcceleratorFramework"]


class AcceleratorFramework:
    """One run of an Accelerator.

    Args:
        accelerator: to which a plugin was just attached: nothing is prepared yet.
        boundary: called at each, with where the run stands, and what gives the kinds of pause before the next.
    """

    _advice = Advice(
        generators="keep each as an attribute of a prepared model, or give it to resume.track(name=generator)",
        data="set them at the top of each epoch from what is restored: the epoch, or resume.counters() of their names",
    )

    def __init__(self, accelerator: Any, boundary: Callable[[Progress, Ahead], None]) -> None:
        self._accelerated = Accelerated(accelerator)
        self._boundary = boundary
        self.pauses = Pauses()
        self.tracker: Tracker = ScriptTracker(
            self._reach,
            self._arrive,
            stranded=self._strand,
            resumes=self.pauses.end,
            evaluates=self._evaluate,
            is_foreign=lambda: self._accelerated.iterates_unknown,
            given=lambda batch: self.observer.batch(batch),
        )
        self.counters = Counters({})
        self.tracked: dict[str, Any] = {}
        self._modules = Modules(self._accelerated, self.tracked)
        self.limits: Mapping[str, float] = {}
        self.seed = Fact(None, "info")
        self.observer = Observer()
        """Told of batches, losses and gradients."""
        self._is_muted = False
        self.idle: Callable[[], None] = lambda: None
        """Called when something is trained outside of a run."""
        self.stranded: Callable[[Progress, BaseException], None] = lambda progress, error: None
        """Called when an exception came while a batch was fetched, right behind a boundary."""
        self._data_facts: dict[str, Fact] = {}
        self._hparams: Mapping[str, Any] = {}
        self._key: int | None = None
        self._late: dict[str, Any] = {}
        self._ends_epoch = self._is_last = False
        self.hooks: list[Any] = []
        self._prepared, self._buckets = Prepared(self._accelerated), Buckets()
        self.ranks = self._accelerated.ranks()
        self._notes = Notes(lambda: self.tracker, self.ranks, self._advice)
        self._gradients = Gradients(self._accelerated, lambda: self.observer)
        for name, method in self._shadows.items():
            self._accelerated.around(name, method)

    @property
    def _shadows(self) -> dict[str, Callable[..., Any]]:
        """What takes the place of methods of the Accelerator, by their names."""
        return {
            "prepare_data_loader": self._prepare_loader,
            "prepare_model": self._prepare_model,
            "prepare_optimizer": self._prepare_optimizer,
            "backward": self._backward,
            "skip_first_batches": self._skip_first_batches,
            "init_trackers": self._init_trackers,
        }

    def mute(self) -> None:
        """Let the Accelerator write nothing of its own, and tell no tracker: this run is a rehearsal."""
        self._is_muted = True
        for name in ("save_state", "save_model", "save", "log", "end_training"):
            self._accelerated.around(name, lambda plain, *args, **kwargs: None)

    def release(self) -> None:
        """The run is over: give the Accelerator back as it was, and its loaders."""
        self._accelerated.release()
        while self.hooks:
            self.hooks.pop().remove()
        for loader in self.loaders:
            loader.release()

    @property
    def accelerated(self) -> Accelerated:
        """The Accelerator, and what it has prepared."""
        return self._accelerated

    @property
    def script(self) -> ScriptTracker:
        """What follows a script that is no Trainer."""
        assert isinstance(self.tracker, ScriptTracker)
        return self.tracker

    # ---- in place of methods of the Accelerator

    def _prepare_loader(self, plain: Callable[..., Any], loader: Any, *args: Any, **kwargs: Any) -> Any:
        if PreparedLoader.of(loader) is not None:
            return plain(loader, *args, **kwargs)
        salt, facts = described(loader)
        prefix = f"data.{len(self.tracker.loaders)}"
        with no_early_state():
            prepared = plain(loader, *args, **kwargs)
        note_described(prepared, salt, facts)
        self._data_facts |= {prefix + name: fact for name, fact in facts.items()}
        self._track(prepared, salt)
        return prepared

    def _track(self, prepared: Any, salt: int) -> None:
        tracked = self.tracker.track(prepared, salt)
        if self._key is not None:
            tracked.open(self._key, self.ranks.rank, self.ranks.size)
            self.tracker.meet(tracked)

    def _skip_first_batches(self, plain: Callable[..., Any], dataloader: Any, num_batches: int = 0) -> Any:
        """A loader that goes on inside an epoch stands behind what it gave already: skip nothing twice."""
        tracked = next((known for known in self.loaders if known.prepared.loader is dataloader), None)
        if tracked is not None and self.tracker.stands_in(tracked, num_batches):
            return dataloader
        skipping = plain(dataloader, num_batches)
        if tracked is not None:
            self._track(skipping, tracked.salt)
        return skipping

    def _prepare_model(self, plain: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        model = plain(*args, **kwargs)
        self._buckets.add(model)
        return model

    def _prepare_optimizer(self, plain: Callable[..., Any], optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        prepared = plain(optimizer, *args, **kwargs)
        own = own_optimizer(prepared)
        if self not in [getattr(hook, "__self__", None) for hook in own._optimizer_step_post_hooks.values()]:
            self.hooks.append(own.register_step_pre_hook(self._before_step))
            self.hooks.append(own.register_step_post_hook(self._stepped))
        return prepared

    @property
    def num_loss_parts(self) -> int:
        """What the loss that is given to ``backward`` was divided by; Accelerate does that itself, behind this."""
        return 1

    def _backward(self, plain: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if not self.tracker.is_running:
            self.idle()
        result = plain(*args, **kwargs)
        self.observer.loss(args[0] if args else kwargs.get("loss"), self.num_loss_parts)
        self.tracker.trained()
        return result

    def _init_trackers(
        self, plain: Callable[..., Any], project_name: str, config: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        """Where scripts say what their hyperparameters are."""
        self._hparams = config if isinstance(config, Mapping) else {}
        return None if self._is_muted else plain(project_name, config, *args, **kwargs)

    def _before_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self._gradients.before_step(optimizer)

    def _stepped(self, *_: Any) -> None:
        self._gradients.stepped()
        self.tracker.trained()  # by a script that calls backward itself
        self.tracker.counts.step += 1

    # ---- boundaries

    @property
    def progress(self) -> Progress:
        """Where the run stands."""
        return self.tracker.counts.progress(
            in_window=self._accelerated.in_window, is_last=self._is_last, ends_epoch=self._ends_epoch
        )

    def _reach(self, *, ends_epoch: bool, is_last: bool) -> None:
        self._ends_epoch, self._is_last = ends_epoch, is_last
        if ends_epoch and self.tracker.is_uneven:  # else the ranks have come here alike
            counts = self.tracker.counts
            mine = [counts.step, counts.batch]
            counts.step, counts.batch = self.ranks.agree("the end of an epoch", mine, lambda all_: [*map(max, *all_)])
        self.pauses.end()
        self._boundary(self.progress, self._ahead)
        if self.tracker.is_behind_loop and not is_last:
            self.pauses.begin(EPOCH_END)

    def _ahead(self) -> Collection[str]:
        """Kinds of pause before the next boundary, as far as that is known; alike on all ranks."""
        if self.tracker.is_behind_loop:
            return (EPOCH_END,)
        # what a script evaluates on some ranks alone cannot be told
        expected = self.ranks.size == 1 and self.pauses.evaluates_behind(self.tracker.counts.batch + 1)
        return (EVALUATION,) if expected else ()

    def _evaluate(self) -> None:
        if self.tracker.is_running:
            self.pauses.evaluate(self.tracker.counts.batch)

    def _strand(self, error: BaseException) -> None:
        self.stranded(self.progress, error)

    # ---- Framework

    @property
    def weights_bytes(self) -> int:
        """Size of what the models' ``state_dict`` hold."""
        return size_bytes(self._modules.weights())

    @property
    def metrics(self) -> Mapping[str, float]:
        """The script's counters that are one number."""
        return numbers(self.counters)

    def live_weights(self) -> dict[str, torch.Tensor]:
        """Parameters and buffers that nothing but `apply` would load."""
        return self._modules.live_weights()

    @property
    def modules(self) -> dict[str, torch.nn.Module]:
        """All that a step may change, by name: prepared models, and modules that are tracked or registered."""
        return self._modules.by_name

    def prepare(self, key: int) -> None:
        """The run's key is known: everything that loaders draw is a function of it from now on."""
        if self._key is None:
            self._agree_on_seeds()
        self._key = key
        for loader in self.tracker.loaders.values():
            loader.open(key, self.ranks.rank, self.ranks.size)

    def _agree_on_seeds(self) -> None:
        """Ranks must go over one order, whatever each was seeded with."""
        loaders = [self.tracker.loaders[slot] for slot in sorted(self.tracker.loaders)]
        mine = [[loader.salt, loader.prepared.seeds] for loader in loaders]
        for loader, (salt, seeds) in zip(loaders, self.ranks.share("the seeds of samplers", mine), strict=True):
            loader.salt, loader.prepared.seeds = salt, seeds

    def preamble(self) -> Mapping[str, Any]:
        """Nothing needs to be known before a checkpoint is read."""
        return {}

    def describe(self) -> dict[str, Fact]:
        """Seed, loaders, optimizers, schedulers, models and the Accelerator's arguments."""
        self._prepared.refuse_unseen(self._modules.parameters)
        weights = self._modules.weights()
        self._prepared.note(weights)
        self._groups = group_sizes(self._accelerated.optimizers)
        own = {"counters": Fact(sorted(self.counters)), "tracked": Fact(sorted(self.tracked), "structure")}
        facts = describe(self._accelerated, self._data_facts, self._hparams, weights)
        return {"seed": self.seed, "world_size": Fact(self.ranks.size), **facts, **own}

    def capture(self) -> State:
        """The state at a boundary: live references."""
        rng = capture_rng()
        weights = self._modules.weights()
        self._prepared.refuse_changes(weights)
        training = {"accelerator": self._accelerated.capture_training(), **self._capture_own()}
        rank = self._capture_rank(rng, self.tracker.capture)
        return State(model=weights, training=training, rank=rank, info={"models": self._accelerated.model_names})

    def _capture_own(self) -> dict[str, Any]:
        """What Accelerate does not know of, the same on all ranks."""
        return {
            "tracked": {name: value.state_dict() for name, value in self._stateful.items()},
            "buckets": self._buckets.state(),
            "groups": capture_groups(self._accelerated.optimizers, self._modules.parameters, self._groups),
        }

    def _capture_rank(self, rng: dict[str, Any], follow: Callable[..., dict[str, Any]]) -> dict[str, Any]:
        return {
            "rng": rng,
            "generators": capture_generators(self._generators()),
            "modules": {name: capture_modules(module) for name, module in self.modules.items()},
            "gradients": capture_gradients(self._modules.parameters),
            "marks": self._accelerated.capture_marks(self._prepared_loaders()),
            "tracker": follow(self.ranks.size, is_first=self.ranks.is_first),
            "counters": capture_counters(self.counters),
        }

    def pieces(self, rng: dict[str, Any]) -> dict[str, dict[str, Any]]:
        """What ``save_state`` leaves out, at any moment: live references.

        Args:
            rng: of that moment.
        """
        self._prepared.refuse_changes(self._modules.weights())
        left_out = capture_left_out(self._accelerated, is_first=self.ranks.is_first)
        training = {**self._capture_own(), "left_out": left_out}
        return {"training": training, "rank": self._capture_rank(rng, self.script.capture_save)}

    def state_of(self, pieces: Mapping[str, Any], load: Callable[[], None]) -> State:
        """What `pieces` saw, as a state that `apply` takes; ``load`` loads what Accelerate itself has saved."""
        return State(model={}, training={**pieces["training"], "load": load}, rank=pieces["rank"])

    def _prepared_loaders(self) -> dict[int, PreparedLoader]:
        return {slot: loader.prepared for slot, loader in self.tracker.loaders.items()}

    @property
    def _stateful(self) -> dict[str, Any]:
        """What is tracked, but for random generators, which each rank has of its own."""
        return {name: value for name, value in self.tracked.items() if not isinstance(value, GENERATORS)}

    def _generators(self) -> tuple[Any, ...]:
        own = [*self.modules.values(), *self.tracked.values(), *self._accelerated.registered]
        return find_generators(own, closed=self._no_owners)

    @property
    def _no_owners(self) -> tuple[object, ...]:
        """What modules refer to and do not own: by the hook of an optimizer this object, and so all loaders."""
        return self._accelerated.accelerator, self

    def parts(self, state: State | None) -> dict[str, Any]:
        """Weights, and the state of optimizers, schedulers and loss scaling: saved, or live where ``state`` is None."""
        training = self._accelerated.capture_training() if state is None else state.training["accelerator"]
        found = {name: training[name] for name in ("optimizers", "schedulers", "scaler")}
        return {"weights": self._modules.weights() if state is None else state.model, **found}

    def vitals(self) -> Vitals:
        """Parameters, optimizers, the scale of the loss, and where the loaders stand."""
        return Vitals(
            parameters=self._modules.parameters,
            optimizers=self._accelerated.optimizers,
            scale=self._accelerated.scale,
            samples=self.tracker.samples(self.ranks.size),
            is_between=self.tracker.is_behind_loop or self.tracker.is_between,
        )

    def apply(self, state: State) -> None:
        """Put the state into the live objects now; what code may still change, once more on arrival."""
        apply_groups(self._accelerated.optimizers, self._modules.parameters, state.training.get("groups", {}))
        with refilled([*self._accelerated.models.values(), *self.tracked.values()]):
            small = self._load(state) if "load" in state.training else self._apply_all(state)
            for name, value in self._stateful.items():
                if name in state.training["tracked"]:
                    value.load_state_dict(state.training["tracked"][name])
        self._buckets.apply(state.training["buckets"])
        apply_counters(self.counters, state.rank["counters"])
        self.tracker.apply(state.rank["tracker"])
        self._late = dict(state.rank) | {"small": small}
        if "load" in state.training:  # as load_state does; and once more on arrival
            self._put_back(self._late | {"gradients": {k: v.clone() for k, v in state.rank["gradients"].items()}})

    def _apply_all(self, state: State) -> dict[str, Any]:
        self._modules.load(state.model)
        self._accelerated.apply_training(state.training["accelerator"])
        return small_part(state.training["accelerator"])

    def _load(self, state: State) -> dict[str, Any]:
        state.training["load"]()
        apply_left_out(self._accelerated, state.training["left_out"])
        return copy.deepcopy(small_part(self._accelerated.capture_training()))

    def watch_buckets(self) -> None:
        """Note in which order gradients become ready."""
        self._buckets.watch()

    @property
    def has_grown(self) -> bool:
        """Whether more was prepared or registered since the run was described."""
        return self._prepared.has_grown

    def begin(self) -> list[str]:
        """Training is about to begin, or to go on.

        Returns:
            What will not be as users may expect, one sentence each.
        """
        self.watch_buckets()
        notes = self._notes.at_start(self.modules, self._accelerated.optimizers_and_own, self._holders())
        restored = names_in_state_hooks(self._keepers()) | set(self.counters)
        self._notes.watch_data(restored, self._looked_into())
        trained = [*self.modules.values(), *self.tracked.values()]
        return notes + self._notes.generators(trained, self._training_code(), self._generators(), self._no_owners)

    def _looked_into(self) -> Collection[int]:
        """Objects whose attributes are watched, by `id`."""
        return () if self._notes.watch is None else self._notes.watch.looked_into

    def _keepers(self) -> list[Any]:
        """Objects of the user's that save a state of their own."""
        return [*self.modules.values(), *self.tracked.values(), *self._accelerated.registered]

    def _training_code(self) -> Iterable[tuple[str, Any]]:
        """What trains beside the models, by name."""
        return running_code()

    def _holders(self) -> list[Any]:
        return [*self._accelerated.schedulers, *self._accelerated.registered, *self.tracked.values()]

    def notes(self) -> list[str]:
        """What training has shown to be lost by a resume, one sentence each; each is told once."""
        return self._notes.later()

    def _arrive(self) -> None:
        late, self._late = self._late, {}
        self._put_back(late)

    def _put_back(self, late: Mapping[str, Any]) -> None:
        self._accelerated.apply_small(late["small"])
        apply_counters(self.counters, late["counters"])
        for name, module in self.modules.items():
            if name in late["modules"]:
                apply_modules(module, late["modules"][name])
        apply_gradients(self._modules.parameters, late["gradients"])
        self.tracker.apply_marks(late["tracker"])
        self._accelerated.apply_marks(late["marks"], self._prepared_loaders())
        apply_generators(self._generators(), late["generators"])
        apply_rng(late["rng"])

    @property
    def loaders(self) -> list[TrackedLoader]:
        """All loaders that were prepared."""
        return list(self.tracker.loaders.values())
