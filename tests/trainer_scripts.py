"""The scripts with a Hugging Face Trainer that the end-to-end tests start in processes of their own."""

from __future__ import annotations

import dataclasses
import os
import random
import signal
import sys
from typing import Any

import harness
import numpy as np
import torch
from scripts import Augmented
from transformers import EarlyStoppingCallback, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_callback import ExportableState
from transformers.trainer_jit_checkpoint import JITCheckpointCallback

from accelerate_resume import Changes, Keep, SaveEvery
from accelerate_resume.trainer import TrainerResumeCallback
from resume_core.boundaries import Boundaries
from resume_core.session import Session
from resume_core.state import Progress

_OF_THE_CLOCK = ("runtime", "per_second", "model_preparation_time")


class Samples(Augmented):
    """With what a Trainer wants to see: labels, and columns of various lengths."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        sample = super().__getitem__(index)
        return {**sample, "labels": torch.tensor(index % 3), "length": 1 + index % 5}


class Net(torch.nn.Module):
    """Dropout, a norm, and a buffer that no state holds."""

    def __init__(self, options: dict[str, Any]) -> None:
        super().__init__()
        width = options.get("width", 8)
        layers = [
            torch.nn.Linear(7, width),
            torch.nn.LayerNorm(width),
            torch.nn.Dropout(0.5),
            torch.nn.Linear(width, 3),
        ]
        self.layers = torch.nn.Sequential(*layers)
        self.register_buffer("seen", torch.zeros(()), persistent=False)

    def forward(self, x: torch.Tensor, labels: torch.Tensor, **rest: Any) -> dict[str, torch.Tensor]:
        if self.training:
            self.seen += x.shape[0]
        logits = self.layers(x)
        return {"loss": torch.nn.functional.cross_entropy(logits, labels) * (1 + self.seen / 100), "logits": logits}


def without_times(logs: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in logs.items() if not any(word in name for word in _OF_THE_CLOCK)}


class Counting(TrainerCallback, ExportableState):
    """A callback with a state of its own, which draws in every hook."""

    def __init__(self, job: harness.Job | None = None, done: int = 0) -> None:
        self.recorder = harness.Recorder(job) if job else None
        self.trainer: Trainer | None = None
        self.resume: TrainerResumeCallback | None = None
        self.done = done
        self.hooks: dict[str, int] = {}

    def state(self) -> dict[str, Any]:
        return {"args": {"done": self.done}, "attributes": {"hooks": dict(self.hooks)}}

    def _settle(self) -> None:
        """The next boundary can save, and does; by the clock alone several ranks meet every few seconds only."""
        run, job = self.resume._run if self.resume is not None else None, self.recorder.job
        if job.settle and run is not None and isinstance(run.session, Session):
            run.session.wait()
            if job.save_steps is None:
                run.session.request()

    def _note(self, hook: str, **facts: Any) -> None:
        self._settle()
        self.hooks[hook] = self.hooks.get(hook, 0) + 1
        drawn = [random.random(), torch.rand(()).item()]
        self.recorder.step(hook=hook, ids=[], hooks=dict(self.hooks), drawn=drawn, **facts)

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        torch.rand(1)

    def on_epoch_begin(self, *_: Any, **__: Any) -> None:
        self._settle()
        torch.rand(1)
        self.hooks["on_epoch_begin"] = self.hooks.get("on_epoch_begin", 0) + 1

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._note("on_step_end", at=[state.global_step, state.epoch])

    def on_substep_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._note("on_substep_end", at=[state.global_step, state.epoch])

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._note("on_epoch_end", at=[state.global_step, state.epoch])

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **_: Any) -> None:
        self._note("on_evaluate", metrics=without_times(metrics))

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        self._note("on_log", logs=without_times(logs))
        if self.trainer is not None and self.done == self.recorder.job.options.get("signal behind"):
            signal_jit(self.trainer)

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._note("on_save", at=state.global_step)


class Recorded(Trainer):
    """Writes down what it trains on."""

    job: harness.Job
    counting: Counting

    def _strip(self, inputs: dict[str, Any]) -> None:
        inputs.pop("length", None)

    def compute_loss(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        ids, x = inputs.pop("id"), inputs["x"]
        self._strip(inputs)
        if not model.training:
            return super().compute_loss(model, inputs, *args, **kwargs)
        done, options = self.counting.done, self.job.options
        self.counting._settle()
        self.counting.recorder.pause(done)
        if done == options.get("signal at"):
            signal_jit(self)
        loss = super().compute_loss(model, inputs, *args, **kwargs)
        if done in options.get("overflows", ()):
            loss = loss * float("inf")
        self.counting.recorder.step(
            epoch=int(self.state.epoch),
            batch=done,
            ids=ids.tolist(),
            x=x.tolist(),
            loss=loss.item(),
            lr=self._get_learning_rate(),
            scale=None if self.accelerator.scaler is None else self.accelerator.scaler.get_scale(),
            marks=[self.accelerator.gradient_state.sync_gradients, self.current_gradient_accumulation_steps],
        )
        self.counting.done += 1
        return loss


def training_arguments(job: harness.Job) -> TrainingArguments:
    arguments = {
        "per_device_train_batch_size": job.batch_size,
        "per_device_eval_batch_size": 4,
        "num_train_epochs": job.epochs,
        "logging_steps": 1,
        "save_strategy": "no",
        "learning_rate": 1e-2,
        "lr_scheduler_type": "cosine",
        "dataloader_num_workers": job.workers,
        "dataloader_persistent_workers": job.persistent,
        "dataloader_pin_memory": False,
        "seed": job.seed,
        **job.options.get("arguments", {}),
    }
    folder = job.options.get("hf", f"{job.directory}-hf")
    quiet = {"use_cpu": True, "report_to": [], "disable_tqdm": True, "remove_unused_columns": False}
    return TrainingArguments(folder, **quiet | arguments)


def resume_callback(job: harness.Job) -> TrainerResumeCallback:
    options, steps = job.options, job.save_steps
    changes = Changes(allow=job.allow, otherwise=job.otherwise)
    if options.get("no_directory"):
        return TrainerResumeCallback(changes=changes)
    return TrainerResumeCallback(
        job.directory,
        resume=job.resume,
        save=SaveEvery(steps=steps, minutes=None if steps else 1e-9),
        keep=Keep(last=job.keep),
        changes=changes,
        check=options.get("check"),
        watch=options.get("watch"),
    )


def make_trainer(job: harness.Job, kind: type[Recorded] = Recorded, **parts: Any) -> Recorded:
    args, counting, resume = training_arguments(job), Counting(job), resume_callback(job)
    callbacks: list[Any] = [counting]
    if "patience" in job.options:
        callbacks.append(EarlyStoppingCallback(job.options["patience"]))
    if job.plugin:
        callbacks.append(resume)
    torch.manual_seed(job.seed)
    validation = Samples(job, 7, "val") if args.eval_strategy != "no" else None
    parts = {"model": Net(job.options), "train_dataset": Samples(job, job.num_samples), **parts}
    trainer = kind(args=args, eval_dataset=validation, callbacks=callbacks, **parts)
    trainer.job, trainer.counting = job, counting
    counting.resume, counting.trainer = resume, trainer
    if job.options.get("scaler"):
        trainer.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3)
    return trainer


def end(trainer: Recorded, result: Any) -> None:
    trainer.counting.recorder.end(
        parameters=harness.digest(trainer.model.state_dict()),
        buffers={name: buffer.tolist() for name, buffer in trainer.model.named_buffers()},
        optimizer=harness.digest(trainer.optimizer.state_dict()),
        scheduler=harness.digest(trainer.lr_scheduler.state_dict()),
        scaler=None if trainer.accelerator.scaler is None else trainer.accelerator.scaler.state_dict(),
        rng=harness.digest([random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()]),
        history=[without_times(entry) for entry in trainer.state.log_history],
        state=[trainer.state.global_step, trainer.state.epoch, trainer.state.best_metric, trainer.state.total_flos],
        callbacks=[c.state() for c in trainer.callback_handler.callbacks if isinstance(c, ExportableState)],
        result=[result.global_step, result.training_loss],
    )


def signal_jit(trainer: Trainer) -> None:
    """What SIGTERM does, without the seconds that its handler waits."""
    (found,) = [c for c in trainer.callback_handler.callbacks if isinstance(c, JITCheckpointCallback)]
    found.jit_manager._enable_checkpoint()


def die_before(trainer: Trainer, step: int, file: str | None) -> None:
    """Be killed when the folder of a step is about to get a file; None: when the Trainer has written it all."""
    plain = trainer._save_checkpoint

    def save(*args: Any, **kwargs: Any) -> None:
        def watch(event: str, parts: tuple[Any, ...]) -> None:
            if event == "open" and file is not None and str(parts[0]).endswith(f"checkpoint-{step}/{file}"):
                os.kill(os.getpid(), signal.SIGKILL)

        if trainer.state.global_step == step:
            sys.addaudithook(watch)
        plain(*args, **kwargs)
        if trainer.state.global_step == step and file is None:
            os.kill(os.getpid(), signal.SIGKILL)

    trainer._save_checkpoint = save  # type: ignore[method-assign]


def cut_inside_windows() -> None:
    """Let saves fall there, as they do when a signal asks for one."""
    plain = Boundaries._decide

    def decide(self: Boundaries, progress: Progress, values: list[Any]) -> dict[str, Any]:
        return plain(self, dataclasses.replace(progress, in_window=False), values)

    Boundaries._decide = decide  # type: ignore[method-assign]


def run(job: harness.Job) -> None:
    torch.set_num_threads(1)
    if job.options.get("cuts"):
        cut_inside_windows()
    trainer = make_trainer(job)
    if "dies before" in job.options:
        die_before(trainer, *job.options["dies before"])
    for _ in range(job.options.get("num_trains", 1)):
        result = trainer.train(resume_from_checkpoint=job.options.get("given"))
    end(trainer, result)
