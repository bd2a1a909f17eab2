"""The Accelerate scripts that the end-to-end tests start in processes of their own."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from typing import Any

import harness
import numpy as np
import torch
from accelerate import Accelerator, DataLoaderConfiguration
from accelerate.utils import (
    DistributedDataParallelKwargs,
    GradientAccumulationPlugin,
    ProjectConfiguration,
    set_seed,
)
from scripts import Augmented, CountedBatches, NumberedBatches
from torch.distributed.algorithms.join import Join
from torch.utils.data import DataLoader, WeightedRandomSampler

from accelerate_resume import Changes, Keep, ResumePlugin, SaveEvery
from accelerate_resume._accelerator import Accelerated


def make_net(options: dict[str, Any]) -> torch.nn.Module:
    width = options.get("width", 8)
    norm = torch.nn.LayerNorm if options.get("loader") == "batches" else torch.nn.BatchNorm1d  # of one sample, some
    layers = [torch.nn.Linear(7, width), norm(width), torch.nn.Dropout(0.5), torch.nn.Linear(width, 1)]
    return torch.nn.Sequential(*layers)


class Average:
    """Of the weights, exponential; the script's own."""

    def __init__(self, module: torch.nn.Module) -> None:
        self.values = [p.detach().clone() for p in module.parameters()]

    def update(self, module: torch.nn.Module) -> None:
        for value, parameter in zip(self.values, module.parameters(), strict=True):
            value.lerp_(parameter.detach(), 0.1)

    def state_dict(self) -> dict[str, Any]:
        return {"values": self.values}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for value, saved in zip(self.values, state["values"], strict=True):
            value.copy_(saved)


def make_accelerator(options: dict[str, Any]) -> Accelerator:
    window = GradientAccumulationPlugin(**{"num_steps": 1, **options.get("window", {})})
    project = ProjectConfiguration(options.get("project"), automatic_checkpoint_naming="numbered" in options)
    project.total_limit = options.get("numbered")
    kwargs = [DistributedDataParallelKwargs(**options["ddp"])] if "ddp" in options else None
    accelerator = Accelerator(
        cpu=True,
        mixed_precision=options.get("precision"),
        gradient_accumulation_plugin=window,
        dataloader_config=DataLoaderConfiguration(**options.get("loading", {})),
        kwargs_handlers=kwargs,
        rng_types=options.get("rng_types"),
        project_config=project,
    )
    if options.get("scaler"):
        accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3)
    return accelerator


def make_loader(job: harness.Job) -> DataLoader:
    common: dict[str, Any] = {"num_workers": job.workers, "persistent_workers": job.persistent}
    data, kind = Augmented(job, job.num_samples), job.options.get("loader", "shuffled")
    if kind == "weighted":
        sampler = WeightedRandomSampler([1.0 + i for i in range(job.num_samples)], job.num_samples)
        return DataLoader(data, job.batch_size, sampler=sampler, **common)
    if kind == "batches":
        return DataLoader(data, batch_sampler=CountedBatches(job.num_samples), **common)
    if kind == "numbered":
        return DataLoader(data, batch_sampler=NumberedBatches(job.num_samples), **common)
    own = torch.Generator().manual_seed(3) if kind == "own generator" else None
    return DataLoader(data, job.batch_size, shuffle=True, generator=own, **common)


class Script:
    """One start of a script."""

    def __init__(self, job: harness.Job, before: Script | None = None) -> None:
        self.job, self.recorder, options = job, harness.Recorder(job), job.options
        self.style = options.get("style", "plain")
        self.before = before if options.get("second") == "the same loaders" else None
        anew = before is None or options["second"] == "a new accelerator"
        accelerator = self.accelerator = (
            make_accelerator({**options, "project": job.directory}) if anew else before.accelerator
        )
        set_seed(job.seed, device_specific=options.get("device_specific", False))
        self.resume = self.make_plugin()
        if job.plugin:
            self.resume.attach(accelerator)
        self.counters = self.resume.counters(done=0, best=float("inf"))
        self.make_parts()
        self.average, self.registered = Average(self.nets[0]), Average(self.nets[0])
        accelerator.register_for_checkpointing(self.registered)
        if job.plugin:
            self.resume.track(average=self.average)

    def make_plugin(self) -> ResumePlugin:
        job, steps = self.job, self.job.save_steps
        return ResumePlugin(
            job.directory,
            resume=job.resume,
            save=SaveEvery(steps=steps, minutes=None if steps else 1e-9),
            keep=Keep(last=job.keep),
            changes=Changes(allow=job.allow, otherwise=job.otherwise),
            check=job.options.get("check"),
            watch=job.options.get("watch"),
        )

    def make_parts(self) -> None:
        options, accelerator = self.job.options, self.accelerator
        nets = [make_net(options) for _ in range(2 if self.style == "gan" else 1)]
        kind = getattr(torch.optim, options.get("optimizer", "AdamW"))
        optimizers = [kind(net.parameters(), lr=options.get("lr", 1e-2)) for net in nets]
        schedulers = [torch.optim.lr_scheduler.CosineAnnealingLR(o, options.get("horizon", 60)) for o in optimizers]
        other = DataLoader(Augmented(self.job, options.get("num_others", 14), "other"), 4, shuffle=True)
        validation = DataLoader(Augmented(self.job, 7, "val"), 4, shuffle=bool(options.get("shuffled validation")))
        if self.style == "freezing":
            nets[0].register_buffer("shift", torch.rand(1, 7).expand(4, 7))
            nets[0].register_forward_pre_hook(lambda net, given: given[0] + net.shift[0])
        self.nets = [accelerator.prepare(net) for net in nets]
        self.optimizers = [accelerator.prepare(optimizer) for optimizer in optimizers]
        loaders = [make_loader(self.job), other, validation]
        if self.before is not None:
            loaders = [self.before.loader, self.before.other, self.before.validation]
        self.loader, self.other, self.validation = accelerator.prepare(*loaders)
        self.schedulers = [accelerator.prepare(scheduler) for scheduler in schedulers]

    # ---- what every style is made of

    def train(self, epoch: int, batch: dict[str, Any], tag: str = "A") -> None:
        self.settle()
        self.recorder.pause(self.counters.done)
        accelerator = self.accelerator
        with accelerator.accumulate(*self.nets):
            losses = [self.step_of(place, batch) for place in range(len(self.nets))]
        self.average.update(self.nets[0])
        self.registered.update(self.nets[0])
        gathered = batch["id"] if self.job.options.get("uneven") else accelerator.gather_for_metrics(batch["id"])
        self.counters.best = min(self.counters.best, losses[0])
        self.recorder.step(
            epoch=epoch,
            batch=self.counters.done,
            tag=tag,
            ids=batch["id"].tolist(),
            x=batch["x"].tolist(),
            losses=losses,
            lr=[optimizer.param_groups[0]["lr"] for optimizer in self.optimizers],
            gathered=gathered.tolist(),
            scale=None if accelerator.scaler is None else accelerator.scaler.get_scale(),
            marks=self.marks(),
            best=self.counters.best,
        )
        self.counters.done += 1
        self.request()
        if self.counters.done == self.job.options.get("stock_at"):  # what Accelerate itself writes here
            accelerator.save_state(str(self.job.path("").parent / "stock"))

    def step_of(self, place: int, batch: dict[str, Any]) -> float:
        accelerator, net, optimizer = self.accelerator, self.nets[place], self.optimizers[place]
        x = batch["x"] + (torch.randn_like(batch["x"]) if place else 0)
        loss = (net(x) - 1 + place).pow(2).mean()
        accelerator.backward(loss) if not self.job.options.get("own backward") else loss.backward()
        if self.counters.done in self.job.options.get("overflows", ()):
            next(net.parameters()).grad.fill_(float("inf"))
        if accelerator.sync_gradients:
            accelerator.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        self.schedulers[place].step()
        optimizer.zero_grad()
        return loss.item()

    def marks(self) -> list[Any]:
        accelerator, state = self.accelerator, self.accelerator.gradient_state
        skipped = [optimizer.step_was_skipped for optimizer in self.optimizers]
        return [accelerator.step, state.sync_gradients, state.end_of_dataloader, state.remainder, skipped]

    def validate(self, epoch: int, leave_at: int | None = None, *, grad: bool = False) -> None:
        net, found = self.nets[0], []
        net.eval()
        with torch.set_grad_enabled(grad):
            for place, batch in enumerate(self.validation):
                found += self.accelerator.gather_for_metrics(net(batch["x"]).sum(1)).tolist()
                if place == leave_at:
                    break
        torch.rand(1)  # validation that draws moves training, and does so again after a resume
        net.train()
        self.recorder.step(validated=found, epoch=epoch, ids=[])

    def settle(self) -> None:
        if self.job.settle and self.resume._session is not None:
            self.resume._session.wait()

    def request(self) -> None:
        """The next boundary saves: by the clock alone several ranks meet every few seconds only."""
        if self.job.save_steps is None and self.resume._session is not None:
            self.resume.save()

    def epochs(self) -> Iterable[int]:
        if self.job.options.get("range"):
            begin = self.resume.restore()
            return range(self.job.epochs) if self.style == "endless" else range(begin, self.job.epochs)
        return self.resume.epochs(self.job.epochs)

    def after_epoch(self, epoch: int) -> None:
        pass

    # ---- styles

    def run(self) -> None:
        job = self.job
        held, epochs = job.options.get("held"), None
        if held == "made late":  # when the run knows where it goes on
            epochs = self.epochs()
        if held:
            self.held = iter(self.loader if self.style == "counted" else self.other)
        for epoch in epochs or self.epochs():
            torch.rand(1), random.random()  # code above the loop runs again
            for net in self.nets:
                net.train()
            getattr(self, "epoch_" + self.style.replace(" ", "_"))(epoch)
            self.settle()
            self.recorder.pause(self.counters.done, in_epoch_end=True)
            self.recorder.step(epoch_end=epoch, done=self.counters.done, ids=[])
            self.after_epoch(epoch)
            self.request()
            if self.counters.done >= job.options.get("stop_at", 10**9):
                break
        self.end()

    def epoch_plain(self, epoch: int) -> None:
        for batch in self.loader:
            self.train(epoch, batch)
            if self.counters.done == self.job.options.get("stop_at"):
                return
        self.validate(epoch)

    epoch_gan = epoch_plain

    def epoch_uneven(self, epoch: int) -> None:
        with Join(self.nets):  # join_uneven_inputs of Accelerate does nothing on CPUs
            for batch in self.loader:
                self.train(epoch, batch)

    def epoch_break(self, epoch: int) -> None:
        for batch in self.loader:
            self.train(epoch, batch)
            if self.counters.done % 4 == 0:
                break
        self.validate(epoch)

    def epoch_continue(self, epoch: int) -> None:
        for batch in self.loader:
            if batch["id"].sum() % 3 == 0:
                continue
            self.train(epoch, batch)

    def epoch_nested(self, epoch: int) -> None:
        for batch in self.loader:
            self.train(epoch, batch)
            if self.counters.done % 2 == 0:
                self.validate(epoch)

    def epoch_nested_with_break(self, epoch: int) -> None:
        for batch in self.loader:
            self.train(epoch, batch)
            if self.counters.done % 2 == 0:
                self.validate(epoch, leave_at=0)

    def epoch_nested_with_gradients(self, epoch: int) -> None:
        for batch in self.loader:
            self.train(epoch, batch)
            if self.counters.done % 2 == 0:
                self.validate(epoch, grad=True)

    def epoch_in_turn(self, epoch: int) -> None:
        for batch in self.loader:
            self.train(epoch, batch)
        for batch in self.other:
            self.train(epoch, batch, "B")
        self.validate(epoch)

    def epoch_zip(self, epoch: int) -> None:
        for one, two in zip(self.loader, self.other, strict=False):
            self.train(epoch, {name: torch.cat([one[name], two[name]]) for name in one}, "AB")

    def epoch_alternating(self, epoch: int) -> None:
        waiting: dict[str, Iterator[Any]] = {"A": iter(self.loader), "B": iter(self.other)}
        while waiting:
            for tag, iterator in list(waiting.items()):
                batch = next(iterator, None)
                if batch is None:
                    del waiting[tag]
                else:
                    self.train(epoch, batch, tag)

    def epoch_cycled(self, epoch: int) -> None:
        """The shorter loader begins anew whenever it is through; held over epochs with ``held``."""
        second = self.held if self.job.options.get("held") else iter(self.other)
        for one in self.loader:
            try:
                two = next(second)
            except StopIteration:
                second = iter(self.other)
                if self.job.options.get("held"):
                    self.held = second
                two = next(second)
            self.train(epoch, {name: torch.cat([one[name], two[name]]) for name in one}, "AB")

    def epoch_endless(self, epoch: int) -> None:
        """Generators that begin a loader anew whenever it is through, and are made once."""

        def endless(loader: Any) -> Iterator[Any]:
            while True:
                yield from loader

        both = zip(endless(self.loader), endless(self.other), strict=True)
        while self.counters.done < 20:
            one, two = next(both)
            self.train(epoch, {name: torch.cat([one[name], two[name]]) for name in one}, "AB")

    def epoch_inner(self, epoch: int) -> None:
        """Each batch of one loader is followed by all of another, which is gone over once more in the end."""
        for batch in self.loader:
            self.train(epoch, batch)
            for inner in self.other:
                self.train(epoch, inner, "B")
        for batch in self.other:
            self.train(epoch, batch, "C")

    def epoch_ahead(self, epoch: int) -> None:
        """Of the second loader the batch is taken before that with which it is trained on."""
        second, two = iter(self.loader), None
        for one in self.other:
            two = two or next(second)
            self.train(epoch, {name: torch.cat([one[name], two[name]]) for name in one}, "AB")
            two = next(second)

    def epoch_freezing(self, epoch: int) -> None:
        """A layer is frozen in the middle of training, and another gets a parameter group; a buffer is expanded."""
        for batch in self.loader:
            self.train(epoch, batch)
            if self.counters.done == 7:
                self.nets[0][0].requires_grad_(False)
                optimizer = self.optimizers[0].optimizer
                *optimizer.param_groups[0]["params"], weight, bias = optimizer.param_groups[0]["params"]
                optimizer.add_param_group({"params": [weight, bias], "lr": 1e-3})

    def epoch_new_loader(self, epoch: int) -> None:
        """Each epoch has a loader of its own, of larger batches."""
        loader = self.accelerator.prepare(DataLoader(Augmented(self.job, 20), 3 + epoch, shuffle=True))
        for batch in loader:
            self.train(epoch, batch)

    def epoch_counted(self, epoch: int) -> None:
        """A fixed number of batches an epoch, of an iterator that is held over epochs."""
        while True:
            batch = next(self.held, None)
            if batch is None:
                self.held = iter(self.loader)
            else:
                self.train(epoch, batch)
                if self.counters.done % 4 == 0:
                    break
        self.validate(epoch)

    def end(self) -> None:
        accelerator = self.accelerator
        loaders = [self.loader, self.other, self.validation]
        iterations = [loader.iteration for loader in loaders]
        self.recorder.end(
            parameters=harness.digest([net.state_dict() for net in map(accelerator.unwrap_model, self.nets)]),
            optimizers=harness.digest([optimizer.state_dict() for optimizer in self.optimizers]),
            schedulers=harness.digest([scheduler.state_dict() for scheduler in self.schedulers]),
            scaler=None if accelerator.scaler is None else accelerator.scaler.state_dict(),
            averages=harness.digest([self.average.values, self.registered.values]),
            rng=harness.digest([random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()]),
            frozen=[not parameter.requires_grad for net in self.nets for parameter in net.parameters()],
            modes=[module.training for net in self.nets for module in net.modules()],
            marks=[accelerator.step, accelerator.sync_gradients, iterations],
            done=self.counters.done,
            best=self.counters.best,
        )


class OwnStates(Script):
    """Saves with ``save_state`` behind each batch and each epoch, and goes on from what ``load`` names."""

    def make_plugin(self) -> ResumePlugin:
        return ResumePlugin(changes=Changes(allow=self.job.allow, otherwise=self.job.otherwise))

    def make_parts(self) -> None:
        super().make_parts()
        self.kept = torch.nn.BatchNorm1d(1, affine=False)  # of each rank its own
        self.accelerator.register_for_checkpointing(self.kept)

    def settle(self) -> None:
        pass

    def request(self) -> None:
        pass

    def save(self, name: str) -> None:
        if self.job.options.get("numbered"):
            self.accelerator.save_state()
        elif "load" not in self.job.options or self.job.options.get("saves"):
            self.accelerator.save_state(f"{self.job.directory}/{name}")

    def train(self, *arguments: Any) -> None:
        super().train(*arguments)
        self.kept(arguments[1]["x"].reshape(-1, 1))
        self.recorder.step(kept=harness.digest(self.kept.state_dict()), ids=[])
        self.save(f"step_{self.counters.done}")

    def after_epoch(self, epoch: int) -> None:
        self.save(f"epoch_{epoch}")

    to_skip: int | None = None

    def epochs(self) -> Iterable[int]:
        """As the script's ``counts`` says: asked for, restored, by the name as Accelerate's examples do, or from 0."""
        job, load = self.job, self.job.options.get("load")
        if load == "newest":
            self.accelerator.load_state()
        elif load:
            self.accelerator.load_state(f"{job.directory}/{load}")
        counts = job.options.get("counts", "asks")
        if counts == "asks":
            return self.resume.epochs(job.epochs)
        if counts == "restores":
            return range(self.resume.restore(), job.epochs)
        kind, number = (load or "epoch_-1").split("_")
        epoch, self.to_skip = divmod(int(number), len(self.loader)) if kind == "step" else (int(number) + 1, None)
        return range(epoch, job.epochs)

    def epoch_example(self, epoch: int) -> None:
        loader, skip = self.loader, self.to_skip
        if skip is not None:
            loader, self.to_skip = self.accelerator.skip_first_batches(loader, skip), None
        for batch in loader:
            self.train(epoch, batch)


def run(job: harness.Job) -> None:
    torch.set_num_threads(1)
    if job.options.get("saves in windows"):  # as a save that cannot wait does
        Accelerated.in_window = False  # type: ignore[assignment]
    script = (OwnStates if job.script == "own states" else Script)(job)
    script.run()
    if "second" in job.options:
        script.accelerator.free_memory()
        Script(second_of(job), script).run()


def second_of(job: harness.Job) -> harness.Job:
    """The second run of a script that has two, with a directory of its own."""
    pause_at = job.options.get("pause_second_at")
    return job.but(name=f"{job.name}-second", directory=f"{job.directory}-second", epochs=2, pause_at=pause_at)
