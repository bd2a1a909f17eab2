"""With transformers.Trainer: alone as its documentation says, or with our callback."""

from __future__ import annotations

from typing import Any

from transformers import Trainer, TrainerCallback, TrainingArguments, set_seed
from transformers.trainer_utils import get_last_checkpoint

from exact.data import Net, Samples, Streamed, make_loader
from exact.job import Job, Recorder


class Begin(TrainerCallback):
    """Tells the recorder where training begins, and what it then asks for."""

    def __init__(self, recorder: Recorder, job: Job) -> None:
        self.recorder, self.job = recorder, job

    def on_train_begin(self, args: Any, state: Any, control: Any, optimizer: Any = None, **_: Any) -> None:
        self.recorder.rate = lambda: float(optimizer.param_groups[0]["lr"])
        self.recorder.begin(state.global_step * self.job.accumulate)


class Own(Trainer):
    """With a loader that the user makes."""

    job: Job

    def get_train_dataloader(self) -> Any:
        plain = self.job.order == "shuffled"
        return super().get_train_dataloader() if plain else self.accelerator.prepare(make_loader(self.job))


def _arguments(job: Job, *, ours: bool) -> TrainingArguments:
    saves = "no" if ours else "steps" if job.save_every else "epoch"
    return TrainingArguments(
        str(job.checkpoints),
        num_train_epochs=job.epochs,
        per_device_train_batch_size=job.batch_size,
        gradient_accumulation_steps=job.accumulate,
        learning_rate=job.rate,
        lr_scheduler_type="cosine",
        dataloader_num_workers=job.workers,
        dataloader_persistent_workers=job.persistent,
        dataloader_pin_memory=False,
        remove_unused_columns=False,
        logging_strategy="no",
        save_strategy=saves,
        save_steps=job.save_every or 500,
        eval_strategy="steps" if job.validate_every else "no",
        eval_steps=job.validate_every,
        prediction_loss_only=True,
        enable_jit_checkpoint=not ours,
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        seed=job.seed,
        ddp_backend="gloo" if job.num_processes > 1 else None,
        max_steps=job.epochs * job.num_batches // job.accumulate if job.order == "streamed" else -1,
    )


def train(job: Job, *, ours: bool = False) -> None:
    recorder = Recorder(job)
    set_seed(job.seed)
    callbacks: list[Any] = [Begin(recorder, job)]
    if ours:
        from accelerate_resume import Changes, Keep, SaveEvery, TrainerResumeCallback

        save = SaveEvery(steps=job.save_every, epochs=None if job.save_every else 1)
        changes = Changes(allow=("seed",) * job.allow_seed)
        callbacks.append(TrainerResumeCallback(job.checkpoints, save=save, keep=Keep(last=99), changes=changes))
    data = Streamed(job.num_samples) if job.order == "streamed" else Samples(job.num_samples, job.augmented)
    arguments = {"train_dataset": data, "eval_dataset": Samples(8), "callbacks": callbacks}
    trainer = Own(Net(job, recorder), _arguments(job, ours=ours), **arguments)
    trainer.job = job
    newest = None if ours or not job.checkpoints.exists() else get_last_checkpoint(str(job.checkpoints))
    trainer.train(resume_from_checkpoint=newest)
    recorder.end(trainer.accelerator.unwrap_model(trainer.model).state_dict())
