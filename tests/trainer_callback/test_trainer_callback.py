"""What users may ask of the callback, and what it refuses or warns of."""

from __future__ import annotations

import json
import logging
import os
from functools import partial

import pytest
import torch
import transformers
from torch.utils.data import IterableDataset
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_callback import ExportableState

from accelerate_resume import Keep, ResumePlugin, SaveEvery, TrainerResumeCallback
from resume_core.errors import CheckpointNotFoundError, ResumeError

DATA = [{"x": torch.tensor([float(number)]), "labels": torch.tensor([number % 2.0])} for number in range(8)]


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def forward(self, x, labels):
        return {"loss": (self.layer(x) - labels).pow(2).mean()}


def make_trainer(folder, *callbacks, kind=Trainer, data=DATA, **arguments):
    quiet = {"use_cpu": True, "report_to": [], "disable_tqdm": True, "save_strategy": "no", "num_train_epochs": 1}
    args = TrainingArguments(str(folder / "out"), dataloader_pin_memory=False, **quiet | arguments)
    return kind(Net(), args, train_dataset=data, callbacks=list(callbacks))


def test_a_trainer_that_is_there_already_takes_it_by_attach(tmp_path):
    trainer = make_trainer(tmp_path)
    callback = TrainerResumeCallback(tmp_path / "run").attach(trainer)
    assert callback.attach(trainer) is callback
    assert trainer.train().global_step == 1
    assert list((tmp_path / "run").glob("attempt-*/step-*/manifest.json"))


def test_one_that_was_added_later_says_so(tmp_path):
    trainer = make_trainer(tmp_path)
    trainer.add_callback(TrainerResumeCallback(tmp_path / "run"))
    with pytest.raises(ResumeError, match=r"give it to Trainer\(callbacks=\[\.\.\.\]\), or call its attach"):
        trainer.train()


def test_one_trainer_has_one_callback_and_one_callback_one_trainer(tmp_path):
    callback = TrainerResumeCallback(tmp_path / "run")
    trainer = make_trainer(tmp_path, callback)
    for other, to in ((TrainerResumeCallback(tmp_path / "other"), trainer), (callback, make_trainer(tmp_path))):
        with pytest.raises(ResumeError, match="one Trainer has one TrainerResumeCallback"):
            other.attach(to)


def test_told_to_go_on_from_a_folder_a_run_without_any_goes_on_from_its_directory(tmp_path, caplog):
    with pytest.raises(CheckpointNotFoundError, match="no whole checkpoint-N"):
        make_trainer(tmp_path, TrainerResumeCallback(tmp_path / "run")).train(resume_from_checkpoint=True)
    first = make_trainer(tmp_path, TrainerResumeCallback(tmp_path / "run")).train()
    again = make_trainer(tmp_path, TrainerResumeCallback(tmp_path / "run"))
    assert again.train(resume_from_checkpoint=True).training_loss == first.training_loss
    assert "no whole checkpoint-N" in caplog.text


def test_turned_off_it_does_nothing(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("EXACT_RESUME", "off")
    assert make_trainer(tmp_path, TrainerResumeCallback(tmp_path / "run")).train().global_step == 1
    assert 'EXACT_RESUME="off": nothing of this run is saved' in caplog.text
    assert not (tmp_path / "run").exists()


def test_something_to_go_on_from_can_be_required(tmp_path):
    with pytest.raises(CheckpointNotFoundError, match='resume="must"'):
        make_trainer(tmp_path, TrainerResumeCallback(tmp_path / "run", resume="must")).train()
    with pytest.raises(CheckpointNotFoundError, match="no whole checkpoint-N"):
        make_trainer(tmp_path, TrainerResumeCallback()).train(resume_from_checkpoint=True)


@pytest.mark.parametrize("given", [{"save": SaveEvery(steps=1)}, {"scratch": "/tmp/x"}, {"resume": "must"}])
def test_without_a_directory_arguments_without_effect_are_refused(given):
    with pytest.raises(ValueError, match="without a directory TrainerResumeCallback saves nothing by itself"):
        TrainerResumeCallback(**given)


class Endless(IterableDataset):
    def __iter__(self):
        return iter(DATA)


REFUSED = {
    "an IterableDataset": ({"data": Endless(), "max_steps": 3}, "an IterableDataset"),
    "auto_find_batch_size": ({"auto_find_batch_size": True}, "auto_find_batch_size"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_would_not_be_exact_is_refused_at_the_start(tmp_path, kind):
    options, name = REFUSED[kind]
    trainer = make_trainer(tmp_path, TrainerResumeCallback(tmp_path / "run"), **options)
    with pytest.raises(ResumeError, match=f"does not support {name} yet"):
        trainer.train()
    assert not (tmp_path / "run").exists()


def test_a_hyperparameter_search_is_refused(tmp_path):
    trainer = make_trainer(tmp_path, TrainerResumeCallback(tmp_path / "run"))
    with pytest.raises(ResumeError, match="does not support a hyperparameter search yet"):
        trainer._inner_training_loop(batch_size=8, args=trainer.args, trial={"learning_rate": 1e-3})


def test_a_plugin_on_the_accelerator_inside_is_refused(tmp_path):
    trainer = make_trainer(tmp_path, TrainerResumeCallback(tmp_path / "run"))
    ResumePlugin(tmp_path / "other").attach(trainer.accelerator)
    with pytest.raises(ResumeError, match="has a ResumePlugin"):
        trainer.train()


@pytest.mark.parametrize("name", ["get_batch_samples", "_run_epoch"])
def test_a_version_that_lacks_what_is_needed_is_refused_with_its_name(tmp_path, monkeypatch, name):
    trainer = make_trainer(tmp_path)
    monkeypatch.delattr(transformers.Trainer, name)
    with pytest.raises(ResumeError, match=rf"transformers {transformers.__version__} lacks .*Trainer\.{name}"):
        TrainerResumeCallback(tmp_path / "run").attach(trainer)


def test_the_trainer_is_given_back_as_it_was(tmp_path):
    trainer = make_trainer(tmp_path, TrainerResumeCallback(tmp_path / "run"))
    before = set(vars(trainer)), set(vars(trainer.accelerator))
    skip = transformers.trainer.skip_first_batches
    trainer.train()
    new = set(vars(trainer)) - before[0]
    assert not [name for name in new if hasattr(Trainer, name)]
    assert set(vars(trainer.accelerator)) == before[1]
    assert transformers.trainer.skip_first_batches is skip
    assert trainer.evaluate(DATA)["eval_loss"] >= 0


class Counting(TrainerCallback):
    def __init__(self):
        self.steps = 0

    def on_step_end(self, *_, **__):
        self.steps += 1


class Own(Trainer):
    seen = 0

    def compute_loss(self, *args, **kwargs):
        self.seen += 1
        return super().compute_loss(*args, **kwargs)


def test_attributes_that_a_resume_would_lose_are_named(tmp_path, caplog):
    trainer = make_trainer(tmp_path, Counting(), TrainerResumeCallback(tmp_path / "run"), kind=Own)
    with caplog.at_level(logging.WARNING, logger="accelerate_resume"):
        trainer.train()
    (message,) = [r.getMessage() for r in caplog.records if "are in no state" in r.getMessage()]
    assert "Counting.0.steps, trainer.seen. After" in message
    assert "ExportableState" in message


def test_a_loader_that_was_not_prepared_is_taken_as_it_is(tmp_path):
    class Plain(Trainer):
        def get_train_dataloader(self):
            return torch.utils.data.DataLoader(DATA, 2, shuffle=True)

    trainer = make_trainer(tmp_path, TrainerResumeCallback(tmp_path / "run"), kind=Plain)
    assert trainer.train().global_step == 4


def test_a_save_at_the_end_of_each_second_epoch(tmp_path):
    class Settle(TrainerCallback):
        def on_step_begin(self, *_, **__):
            callback._run.session.wait()

    callback = TrainerResumeCallback(tmp_path / "run", save=SaveEvery(minutes=None, epochs=2), keep={"last": 9})
    make_trainer(tmp_path, callback, Settle(), num_train_epochs=5).train()
    assert {int(path.parent.name[5:14]) for path in tmp_path.glob("run/*/*/manifest.json")} == {0, 2, 4, 5}


@pytest.mark.parametrize("is_there", [False, True])
def test_a_rehearsal_leaves_no_folder_that_the_trainer_makes(tmp_path, monkeypatch, is_there):
    monkeypatch.setenv("EXACT_RESUME_DRILL", str(tmp_path / "result.json"))
    if is_there:
        (tmp_path / "out").mkdir()
        os.utime(tmp_path / "out", (1, 1))
    make_trainer(tmp_path, TrainerResumeCallback(tmp_path / "run"))
    assert (tmp_path / "out").exists() == is_there


@pytest.mark.parametrize("when", [{"eval_strategy": "steps", "eval_steps": 2}, {"eval_strategy": "epoch"}])
def test_a_save_that_falls_on_an_evaluation_carries_what_that_has_judged(tmp_path, when):
    every = {"steps": 2} if "eval_steps" in when else {"epochs": 1}
    callback = TrainerResumeCallback(tmp_path / "run", save=SaveEvery(minutes=None, **every), keep=Keep(last=9))
    chosen = {"per_device_train_batch_size": 2, "num_train_epochs": 2, **when}
    trainer = make_trainer(tmp_path, callback, kind=partial(Trainer, eval_dataset=DATA[:2]), **chosen)
    trainer.compute_metrics = lambda _: {"at": float(trainer.state.global_step)}
    trainer.prediction_step = lambda model, inputs, *_, **__: (torch.zeros(()), inputs["x"], inputs["labels"])
    trainer.train()
    headers = [json.loads(path.read_text())["header"] for path in tmp_path.glob("run/*/*/manifest.json")]
    # one that came due beside another comes a step later, on no evaluation
    judged = {one["progress"]["step"]: one["metrics"].get("eval_at") for one in headers}
    told = {step: value for step, value in judged.items() if step and step % 2 == 0}
    assert len(told) >= 2
    assert all(value == step for step, value in told.items())


@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("by_items", [False, True])
def test_losses_are_told_as_the_model_has_computed_them(tmp_path, accumulate, by_items):
    class Same(Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            loss = super().compute_loss(model, inputs) * 0 + 3.0
            return loss / accumulate if by_items else loss

    callback = TrainerResumeCallback(tmp_path / "run")
    chosen = {"per_device_train_batch_size": 1, "gradient_accumulation_steps": accumulate, "max_steps": 2}
    trainer = make_trainer(tmp_path, callback, kind=Same, **chosen)
    trainer.model_accepts_loss_kwargs = by_items
    trainer.train()
    (history,) = (tmp_path / "run").glob("*/history.json")
    assert [loss for _, loss in json.loads(history.read_bytes())["losses"]] == [3.0, 3.0]


GEN = torch.Generator()


class Draws(Trainer):
    def compute_loss(self, *args, **kwargs):
        return super().compute_loss(*args, **kwargs) + 0 * torch.rand((), generator=GEN)


@pytest.mark.parametrize("is_kept", [False, True])
def test_random_generators_that_no_state_holds_are_named(tmp_path, caplog, is_kept):
    trainer = make_trainer(tmp_path, Counting(), TrainerResumeCallback(tmp_path / "run"), kind=Draws)
    if is_kept:
        trainer.model.generator = GEN
    trainer.train()
    named = [r.getMessage() for r in caplog.records if "random generators that training draws" in r.getMessage()]
    assert len(named) == (not is_kept)
    assert is_kept or f"in no state: {__name__}.GEN. After" in named[0]


class Lengths(torch.utils.data.Dataset):
    def __init__(self):
        self.maxlen = 64

    def __getitem__(self, index):
        return DATA[index]

    def __len__(self):
        return len(DATA)


class Curriculum(TrainerCallback):
    def on_epoch_begin(self, args, state, control, train_dataloader=None, **kwargs):
        train_dataloader.dataset.maxlen = 128


class KeptCurriculum(Curriculum, ExportableState):
    def state(self):
        return {"args": {}, "attributes": {"maxlen": 128}}


@pytest.mark.parametrize("kind", [Curriculum, KeptCurriculum])
def test_an_attribute_of_the_dataset_that_a_hook_changes_is_named(tmp_path, caplog, kind):
    make_trainer(tmp_path, kind(), TrainerResumeCallback(tmp_path / "run"), data=Lengths()).train()
    named = [r.getMessage() for r in caplog.records if "in no state: dataset.0.maxlen. After" in r.getMessage()]
    assert len(named) == (kind is Curriculum)
