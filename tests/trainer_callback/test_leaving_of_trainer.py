"""Signals that come where a Trainer reaches no boundary for longer than the machine lives after one."""

from __future__ import annotations

import os
import signal
import time

import pytest
import torch
from test_trainer_callback import Net
from transformers import Trainer, TrainerCallback, TrainingArguments

from accelerate_resume import Preemption, SaveEvery, TrainerResumeCallback
from resume_core.errors import Preempted

DATA = [{"x": torch.tensor([float(number)]), "labels": torch.tensor([number % 2.0])} for number in range(16)]


class Slow(Trainer):
    """Its evaluations take longer than the grace; in one of them, or in a hook at an epoch's end, comes a signal."""

    hook = asked_at = None

    def pause(self, hook):
        self.seen.append((hook, self.state.global_step))
        time.sleep(0.2)
        if (hook, self.state.global_step) == (self.hook, self.asked_at):
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(20)

    def evaluate(self, *args, **kwargs):
        self.pause("evaluation")
        return {}


class AtEnd(TrainerCallback):
    def on_epoch_end(self, args, state, control, **kwargs):
        self.trainer.pause("end")


def train(folder, hook=None, asked_at=None, **arguments):
    quiet = {"use_cpu": True, "report_to": [], "disable_tqdm": True, "save_strategy": "no", "num_train_epochs": 3}
    args = TrainingArguments(
        str(folder / "out"), dataloader_pin_memory=False, per_device_train_batch_size=4, **quiet | arguments
    )
    policy, at_end = Preemption(grace_s=0.1), AtEnd()
    callback = TrainerResumeCallback(folder / "run", save=SaveEvery(minutes=None), preemption=policy)
    trainer = at_end.trainer = Slow(Net(), args, train_dataset=DATA, eval_dataset=DATA, callbacks=[callback, at_end])
    trainer.seen, trainer.hook, trainer.asked_at = [], hook, asked_at
    trainer.train()
    return trainer.seen


STEPS, EPOCHS = {"eval_strategy": "steps", "eval_steps": 2}, {"eval_strategy": "epoch"}


# 4 batches an epoch; what is measured once is met from the second time on
@pytest.mark.parametrize(
    ("hook", "asked_at", "saved", "arguments"),
    [
        ("evaluation", 4, 3, STEPS),
        pytest.param("evaluation", 6, 5, STEPS, marks=pytest.mark.slow),
        pytest.param("evaluation", 4, 3, STEPS | {"gradient_accumulation_steps": 2}, marks=pytest.mark.slow),
        ("evaluation", 8, 8, EPOCHS),
        ("end", 8, 8, EPOCHS),
    ],
)
def test_a_signal_in_a_long_evaluation_or_epoch_end_ends_a_run_at_once_that_is_saved(
    tmp_path, hook, asked_at, saved, arguments, caplog
):
    with pytest.raises(Preempted):
        train(tmp_path, hook, asked_at, **arguments)
    assert "SIGTERM: the run was saved before this " in caplog.text
    newest = max(path.parent.name for path in tmp_path.glob("run/*/*/manifest.json"))
    assert newest == f"step-{saved:09d}"
    again = train(tmp_path, **arguments)
    assert (hook, asked_at) in again[:2]
    assert again == [one for one in train(tmp_path / "whole", **arguments) if one[1] >= asked_at]
