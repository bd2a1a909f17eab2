"""Text with the Trainer of transformers; see the package."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import Trainer, TrainerCallback, TrainingArguments, set_seed
from transformers.trainer_utils import get_last_checkpoint

from accelerate_resume import Changes, SaveEvery, TrainerResumeCallback
from resume_core.cli.demo.trainings.text import Pieces, accuracy, make_model
from resume_core.cli.demo.trainings.writing import Writer

__all__ = ["Recorded", "Recorder", "train"]

_BATCH_SIZE = 16


class Recorded(Trainer):  # type: ignore[misc]
    """Keeps what it was given last, for `Recorder`."""

    last: dict[str, Any]

    def compute_loss(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> torch.Tensor:
        """The loss of a batch, shape ()."""
        ids = inputs.pop("id")
        loss: torch.Tensor = super().compute_loss(model, inputs, *args, **kwargs)
        self.last = {"ids": ids, "inputs": inputs["input_ids"], "rate": self._rate(), "loss": loss.item()}
        return loss

    def _rate(self) -> float:
        return float(self.optimizer.param_groups[0]["lr"])


class Recorder(TrainerCallback):  # type: ignore[misc]
    """Writes down every batch that was trained on.

    Args:
        writer: where to.
        num_samples: of the training data.
    """

    def __init__(self, writer: Writer, num_samples: int) -> None:
        self._writer, self._num_samples = writer, num_samples
        self._num_batches = num_samples // _BATCH_SIZE
        self.trainer: Recorded | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """What was restored is in place; nothing is trained yet."""
        places = {"num_batches": self._num_batches, "num_samples": self._num_samples}
        self._writer.begin(begins_at=state.global_step, **places)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """The batch is used up: its step is done."""
        assert self.trainer is not None
        epoch, batch = divmod(state.global_step - 1, self._num_batches)
        self._writer.batch(step=state.global_step, epoch=epoch, batch=batch, **self.trainer.last)


def _arguments(job: dict[str, Any], directory: Path) -> TrainingArguments:
    return TrainingArguments(
        str(directory),
        num_train_epochs=job["epochs"],
        per_device_train_batch_size=_BATCH_SIZE,
        learning_rate=5e-3,
        lr_scheduler_type="cosine",
        dataloader_num_workers=2,
        dataloader_pin_memory=False,
        remove_unused_columns=False,
        logging_strategy="no",
        save_strategy="no" if job["plugin"] else "steps",
        save_steps=job["save_steps"],
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        seed=job["seed"],
    )


def train(job: dict[str, Any]) -> None:
    """Train as ``job`` says, from wherever the checkpoints in its folder end."""
    torch.set_num_threads(1)  # sums are split over threads: any number would do, as long as it stays the same
    set_seed(job["seed"])
    directory, data, writer = Path(job["folder"], "checkpoints"), Pieces(train=True), Writer(job)
    recorder = Recorder(writer, len(data))
    callbacks: list[Any] = [recorder]
    if job["plugin"]:
        save = SaveEvery(steps=job["save_steps"])
        callbacks.append(TrainerResumeCallback(directory, save=save, changes=Changes(allow=("seed",))))
    trainer = Recorded(make_model(), _arguments(job, directory), train_dataset=data, callbacks=callbacks)
    recorder.trainer = trainer
    newest = None if job["plugin"] or not directory.exists() else get_last_checkpoint(str(directory))
    trainer.train(resume_from_checkpoint=newest)
    model = trainer.model
    writer.end(parameters=model.state_dict(), optimizer=trainer.optimizer.state_dict(), accuracy=accuracy(model))


if __name__ == "__main__":
    train(json.loads(sys.argv[1]))
